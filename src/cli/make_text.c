/* Prints files as C arrays: epa2a.bash becomes epa2a_bash. Runs in the build. */
#include <stdio.h>
#include <string.h>

static int print_file(const char *path)
{
    const char *name = strrchr(path, '/');
    FILE *file = fopen(path, "rb");
    int c, column = 0;

    if (file == NULL) {
        perror(path);
        return 1;
    }
    printf("static const char ");
    for (name = name == NULL ? path : name + 1; *name != '\0'; name++)
        putchar(*name == '.' || *name == '-' ? '_' : *name);
    printf("[] = {\n");
    while ((c = getc(file)) != EOF)
        printf("%d,%s", (signed char)c, ++column % 24 == 0 ? "\n" : "");
    printf("0};\n");
    return fclose(file) != 0;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (print_file(argv[i]) != 0)
            return 1;
    return ferror(stdout) != 0 || fflush(stdout) != 0;
}
