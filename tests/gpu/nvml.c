/* Tests of the reported clocks and links with a simulated NVML (fake/nvml.c); no GPU is needed. */
#include "../unit/test.h"

#include "../../plugins/backend/cuda/nvml.h"

static char pci[4][NVML_PCI_ID] = {"0000:00:00.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"};

/* Appends "key=value; " for each reported fact. */
static void note(void *arg, const char *key, const char *value)
{
    char *text = arg;
    size_t n = strlen(text);

    assert_true(n + strlen(key) + strlen(value) + 4 < 1024);
    sprintf(text + n, "%s=%s; ", key, value);
}

static void assert_said(int device, int n, const char *failing, const char *expected)
{
    char text[1024] = "";

    if (failing != NULL)
        setenv("FAKE_NVML", failing, 1);
    else
        unsetenv("FAKE_NVML");
    nvml_describe(&(struct nvml_question){pci, n, device, note, text});
    assert_string_equal(text, expected);
}

TEST(clocks_throttling_and_links_are_reported)
{
    assert_said(0, 4, NULL,
                "driver=580.1.2; clock=1755 of 1980 MHz; memory_clock=2619 of 3201 MHz; "
                "throttle=power cap, heat; power=123 of 700 W; temperature=41 C; mig=off; "
                "links=6 active, to switches; peers=GPU 2 over NVLink; ");
}

TEST(a_gpu_without_links_is_reported)
{
    assert_said(3, 4, NULL,
                "driver=580.1.2; clock=1755 of 1980 MHz; memory_clock=2619 of 3201 MHz; "
                "throttle=none; power=123 of 700 W; temperature=41 C; mig=on; links=none; "
                "peers=none over NVLink; ");
}

TEST(values_missing_in_nvml_are_left_out)
{
    assert_said(2, 1, "nvmlDeviceGetClockInfo",
                "driver=580.1.2; throttle=none; power=123 of 700 W; temperature=41 C; "
                "mig=off; links=6 active, to switches; ");
    assert_said(2, 1, "nvmlDeviceGetNvLinkRemoteDeviceType",
                "driver=580.1.2; clock=1755 of 1980 MHz; memory_clock=2619 of 3201 MHz; "
                "throttle=none; power=123 of 700 W; temperature=41 C; mig=off; "
                "links=6 active; ");
}

TEST(a_failure_of_nvml_is_reported)
{
    assert_said(0, 4, "nvmlInit_v2", "nvml=does not start: Unknown Error; ");
    assert_said(0, 4, "nvmlDeviceGetHandleByPciBusId_v2",
                "driver=580.1.2; nvml=does not know the GPU: Unknown Error; ");
}
