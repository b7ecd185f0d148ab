// Finds the place of each device as NCCL does: its PCI path, by the class of devices and by the
// bus, and the class, link and NUMA node of each PCI function on the way to the host bridge.
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// text returns the first line of a file.
static const char *text(const char *dir, const char *file)
{
	static char line[4][256];
	static int next;
	char path[PATH_MAX], *to = line[next++ % 4];
	snprintf(path, sizeof path, "%s/%s", dir, file);
	FILE *f = fopen(path, "r");
	if (!f || !fgets(to, sizeof *line, f))
		strcpy(to, "none");
	if (f)
		fclose(f);
	to[strcspn(to, "\n")] = 0;
	return to;
}

int main(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	for (int i = 0; i < n; i++) {
		char file[2 * PATH_MAX], device[PATH_MAX], by_bus[PATH_MAX], subsystem[PATH_MAX];
		struct ibv_context *c = ibv_open_device(list[i]);
		struct ibv_device_attr a;
		if (!c || ibv_query_device(c, &a))
			return 1;
		printf("%s: vendor %#x, part %#x, firmware %s\n", ibv_get_device_name(list[i]), a.vendor_id, a.vendor_part_id, a.fw_ver);
		snprintf(file, sizeof file, "/sys/class/infiniband/%s/device", ibv_get_device_name(list[i]));
		if (!realpath(file, device))
			continue;
		snprintf(file, sizeof file, "%s/subsystem", device);
		if (!realpath(file, subsystem) || strcmp(subsystem, "/sys/bus/pci"))
			continue;
		const char *address = strrchr(device, '/') + 1;
		snprintf(file, sizeof file, "/sys/class/pci_bus/%.7s/../../%s", address, address);
		if (!realpath(file, by_bus) || strcmp(by_bus, device))
			return 1;
		for (; strncmp(strrchr(device, '/'), "/pci", 4); *strrchr(device, '/') = 0)
			printf("  %s class %s, %s, x%s, NUMA node %s\n", device, text(device, "class"), text(device, "max_link_speed"),
				text(device, "max_link_width"), text(device, "numa_node"));
	}
	return 0;
}
