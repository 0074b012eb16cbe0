/* RDMA ports, GPUs and networks, as /sys has them: no library is asked. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sysfile.h"
#include "doctor/parts.h"

/* Entries of a folder in the order of their names, hidden ones left out. */
static int list(const char *root, const char *path, struct dirent ***out)
{
    char full[512];
    int n;

    snprintf(full, sizeof(full), "%s%s", root, path);
    n = scandir(full, out, NULL, alphasort);
    if (n < 0)
        *out = NULL;
    return n;
}

static void list_free(struct dirent **entry, int n)
{
    for (int i = 0; i < n; i++)
        free(entry[i]);
    free(entry);
}

/* "4: ACTIVE" is told without its number, as is "100 Gb/sec (4X EDR)" as it stands. */
static void add_port(const char *root, const char *device, const char *port, struct machine *out)
{
    struct machine_port *to = &out->port[out->ports];
    char path[512], text[64];
    const char *word;

    if (out->ports == MACHINE_PORTS)
        return;
    snprintf(to->device, sizeof(to->device), "%.31s", device);
    to->port = (uint32_t)strtoul(port, NULL, 10);
    snprintf(path, sizeof(path), "/sys/class/infiniband/%.64s/ports/%.16s/state", device, port);
    sysfile_line(root, path, text, sizeof(text));
    word = strchr(text, ':');
    word = word != NULL ? word + 1 + strspn(word + 1, " ") : text;
    snprintf(to->state, sizeof(to->state), "%.23s", word);
    snprintf(path, sizeof(path), "/sys/class/infiniband/%.64s/ports/%.16s/rate", device, port);
    sysfile_line(root, path, to->rate, sizeof(to->rate));
    snprintf(path, sizeof(path), "/sys/class/infiniband/%.64s/ports/%.16s/link_layer", device,
             port);
    sysfile_line(root, path, to->link, sizeof(to->link));
    out->ports++;
}

static void collect_ports(const char *root, struct machine *out)
{
    struct dirent **device;
    int n = list(root, "/sys/class/infiniband", &device);

    for (int i = 0; i < n; i++) {
        struct dirent **port;
        char path[512];
        int ports;

        if (device[i]->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/sys/class/infiniband/%.64s/ports", device[i]->d_name);
        ports = list(root, path, &port);
        for (int j = 0; j < ports; j++) {
            if (port[j]->d_name[0] != '.')
                add_port(root, device[i]->d_name, port[j]->d_name, out);
        }
        list_free(port, ports);
    }
    list_free(device, n);
}

/* Vendor 0x10de, class 0x03: a display or 3D controller of NVIDIA. */
static void count_gpus(const char *root, struct machine *out)
{
    struct dirent **device;
    int n = list(root, "/sys/bus/pci/devices", &device);

    for (int i = 0; i < n; i++) {
        char path[512], vendor[16], class[16];

        snprintf(path, sizeof(path), "/sys/bus/pci/devices/%.64s/vendor", device[i]->d_name);
        if (!sysfile_line(root, path, vendor, sizeof(vendor)) || strcmp(vendor, "0x10de") != 0)
            continue;
        snprintf(path, sizeof(path), "/sys/bus/pci/devices/%.64s/class", device[i]->d_name);
        sysfile_line(root, path, class, sizeof(class));
        out->gpus += strncmp(class, "0x03", 4) == 0;
    }
    list_free(device, n);
    sysfile_field(root, "/proc/driver/nvidia/version", "NVRM version", out->gpu_driver,
                  sizeof(out->gpu_driver));
}

/* Those that are up; the loopback is everywhere. */
static void collect_networks(const char *root, struct machine *out)
{
    struct dirent **device;
    int n = list(root, "/sys/class/net", &device);

    for (int i = 0; i < n && out->networks < MACHINE_NETWORKS; i++) {
        struct machine_network *to = &out->network[out->networks];
        const char *name = device[i]->d_name;
        char path[512], text[32];

        snprintf(path, sizeof(path), "/sys/class/net/%.64s/operstate", name);
        if (name[0] == '.' || strcmp(name, "lo") == 0 ||
            !sysfile_line(root, path, text, sizeof(text)) || strcmp(text, "up") != 0)
            continue;
        snprintf(to->name, sizeof(to->name), "%.31s", name);
        snprintf(path, sizeof(path), "/sys/class/net/%.64s/speed", name);
        if (sysfile_line(root, path, text, sizeof(text)) && text[0] != '-')
            to->megabits = strtoull(text, NULL, 10);
        out->networks++;
    }
    list_free(device, n);
}

void devices_collect(const char *root, struct machine *out)
{
    collect_ports(root, out);
    count_gpus(root, out);
    collect_networks(root, out);
}
