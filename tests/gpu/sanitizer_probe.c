/* Contains faults that a tool of compute-sanitizer must find, so that sanitizer.sh can tell that
 * the tool is active.
 *
 *   gpu-sanitizer-probe memcheck|racecheck|initcheck */
void probe(const char *tool); /* defined in sanitizer_probe_kernels.cu */

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    probe(argv[1]);
    return 0;
}
