// The devices of rdma_cm. Each is opened once for all IDs. It has a protection domain for IDs for
// which the program specifies none.
#include "cm.h"

static struct cm_device devices[SR_MAX_DEVICES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

// forget makes a child after fork open the devices for itself. No thread holds the mutex.
static void forget(void)
{
	pthread_mutex_init(&mutex, NULL);
	memset(devices, 0, sizeof devices);
}

__attribute__((constructor)) static void add_fork_handler(void) { pthread_atfork(NULL, NULL, forget); }

struct cm_device *open_cm_device(int n)
{
	struct cm_device *d = NULL;
	int count = 0;
	pthread_mutex_lock(&mutex);
	if (n >= 0 && n < SR_MAX_DEVICES && devices[n].pd) {
		d = &devices[n];
	} else {
		struct ibv_device **list = ibv_get_device_list(&count);
		if (list && n >= 0 && n < count) {
			struct ibv_context *c = ibv_open_device(list[n]);
			struct ibv_pd *pd = c ? ibv_alloc_pd(c) : NULL;
			if (pd) {
				d = &devices[n];
				d->verbs = c;
				d->pd = pd;
			} else if (c) {
				ibv_close_device(c);
			}
		} else if (list) {
			errno = ENODEV;
		}
		if (list)
			ibv_free_device_list(list);
	}
	pthread_mutex_unlock(&mutex);
	return d;
}

struct ibv_xrcd *default_xrcd(struct cm_device *d)
{
	if (!d || !d->pd) { // d->pd is NULL if the ID is inherited
		errno = EINVAL;
		return NULL;
	}
	pthread_mutex_lock(&mutex);
	if (!d->xrcd) {
		struct ibv_xrcd_init_attr attr = {
			.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
			.fd = -1,
		};
		d->xrcd = ibv_open_xrcd(d->verbs, &attr);
	}
	pthread_mutex_unlock(&mutex);
	return d->xrcd;
}

PUBLIC struct ibv_context **rdma_get_devices(int *num)
{
	int n = 0, count = 0;
	struct ibv_device **names = ibv_get_device_list(&count);
	struct ibv_context **list = names ? calloc(count + 1, sizeof *list) : NULL;
	if (names)
		ibv_free_device_list(names);
	for (int i = 0; list && i < count; i++) {
		struct cm_device *d = open_cm_device(i);
		if (d)
			list[n++] = d->verbs;
	}
	if (num)
		*num = n;
	return list;
}

PUBLIC void rdma_free_devices(struct ibv_context **list) { free(list); }
