/* Completion for shells. */
#ifndef COMPLETE_H
#define COMPLETE_H

/* `epa2a __complete WORD...`: the arguments of epa2a up to the cursor, the last of which is
 * completed. Returns the exit code. */
int complete_main(int argc, char **argv);

#endif
