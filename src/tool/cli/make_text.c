/* Build tool: prints a header with files as C arrays. epa2a.bash becomes epa2a_bash. In a file that begins with
 * "=== NAME" each such line starts a new array, NAME_txt. */
#include <stdio.h>
#include <string.h>

static void begin_array(const char *name, size_t bytes, const char *end)
{
    printf("static const char ");
    for (size_t i = 0; i < bytes; i++)
        putchar(name[i] == '.' || name[i] == '-' ? '_' : name[i]);
    printf("%s[] = {\n", end);
}

static int print_file(const char *path)
{
    const char *name = strrchr(path, '/');
    FILE *file = fopen(path, "rb");
    char line[1024];

    if (file == NULL) {
        perror(path);
        return 1;
    }
    name = name == NULL ? path : name + 1;
    for (int n = 0; fgets(line, sizeof(line), file) != NULL; n++) {
        if (strncmp(line, "=== ", 4) == 0) {
            printf("%s", n == 0 ? "" : "0};\n");
            begin_array(line + 4, strcspn(line + 4, "\n"), "_txt");
            continue;
        }
        if (n == 0)
            begin_array(name, strlen(name), "");
        for (const char *c = line; *c != '\0'; c++)
            printf("%d,", (signed char)*c);
        putchar('\n');
    }
    printf("0};\n");
    return fclose(file) != 0;
}

int main(int argc, char **argv)
{
    printf("#pragma once\n");
    for (int i = 1; i < argc; i++)
        if (print_file(argv[i]) != 0)
            return 1;
    return ferror(stdout) != 0 || fflush(stdout) != 0;
}
