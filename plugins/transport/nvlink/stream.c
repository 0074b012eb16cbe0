/* Failures of CUDA, and waits for streams. */
#include "stream.h"

enum epa_status nvlink_status(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? EPA_ERR_NOMEM : EPA_ERR_SYSTEM;
}

enum epa_status nvlink_cuda(struct nvlink *n, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return EPA_OK;
    (void)cudaGetLastError();
    n->failure = (struct failure){
        .at = FAILED_CUDA, .status = EPA_ERR_SYSTEM, .code = (int)error, .what = what};
    return EPA_ERR_SYSTEM;
}

enum epa_status nvlink_drain(struct nvlink *n, cudaStream_t stream, struct epa_wait *wait,
                             bool heeds_abort)
{
    static const uint32_t never = 0;
    struct epa_wait_config config = n->memory.wait;
    struct epa_wait_state state = {
        .kind = EPA_WAIT_DEVICE, .peer = EPA_WAIT_NOBODY, .number = EPA_WAIT_NOBODY};

    config.aborted = heeds_abort ? n->boot->aborted : &never;
    for (;;) {
        cudaError_t error = cudaStreamQuery(stream);
        enum epa_status status;

        if (error == cudaSuccess)
            return epa_wait_done(&config, wait);
        if (error != cudaErrorNotReady)
            return nvlink_cuda(n, error, "waiting for a stream");
        status = epa_wait_turn(&config, wait, &state);
        if (status != EPA_OK) {
            n->failure = (struct failure){
                .at = FAILED_QUIET, .status = status, .waited_ns = wait->waited_ns};
            return status;
        }
    }
}
