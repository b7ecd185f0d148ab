// Declarations that the files of librdmacm.so.1 share. Programs see the structures of
// <rdma/rdma_cma.h>, whose fields are kept here. Each structure stands for an object of the engine
// (libsoftrnic.so). SoftRNIC's libibverbs.so.1 loads the engine, and creates the QPs, CQs and other
// objects of verbs.
#ifndef CM_H
#define CM_H

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "../libsoftrnic/softrnic.h"

// PUBLIC marks a function that programs call. All others are hidden.
#define PUBLIC __attribute__((visibility("default")))

// From SoftRNIC's libibverbs.so.1; see its front.h.
int front_load(void);
const struct sr_engine *front_engine(void);
extern unsigned int front_generation;
#define engine front_engine()

#include "../libibverbs/life.h"

// Of rdma-core 60 and later. The installed headers may lack them.
#define EVENT_ADDRINFO_RESOLVED 16
#define EVENT_USER 18
#define ADDRINFO_SA 0x10  // RAI_SA
#define ADDRINFO_DNS 0x20 // RAI_DNS

// A device with the objects that its IDs share. It is opened when the first ID needs it, and is
// never freed.
struct cm_device {
	struct ibv_context *verbs;
	struct ibv_pd *pd;
	struct ibv_xrcd *xrcd; // the XRC domain for programs that specify none
};

struct channel {
	struct rdma_event_channel ch;
	struct life life;
	uint32_t handle;
	struct cm_id *spare; // for the next connection request, or NULL
};

// A multicast group that an ID has joined.
struct group {
	struct group *next;
	int left;               // the ID has left the group, and gets no more of its events
	struct sr_cm_addr addr; // its port is 0
	void *context;
	uint32_t reported, completed; // events returned and acknowledged
};

struct cm_id {
	struct rdma_cm_id id;
	struct life life;
	uint32_t handle;
	// The number of the ID's events. Valid when the engine has destroyed it.
	uint32_t events;
	int sync; // the ID was created without a channel and has one of its own
	struct cm_device *dev;
	struct ibv_sa_path_rec path;
	struct ibv_qp_init_attr *qp_init_attr; // of rdma_create_ep, for the QPs of a listener's requests

	pthread_mutex_t mutex; // guards the fields below
	int resolving;         // rdma_resolve_addrinfo was called, and its result not yet taken
	struct rdma_addrinfo *resolved;
	pthread_cond_t acked;
	uint32_t completed; // acknowledged events
	struct group *groups;
};

struct event {
	struct rdma_cm_event ev;
	struct group *group; // of multicast events
	uint8_t data[255];   // the private data
};

static inline struct cm_id *to_id(struct rdma_cm_id *id) { return (struct cm_id *)id; }
static inline struct channel *to_channel(struct rdma_event_channel *ch) { return (struct channel *)ch; }

// result returns the result of a librdmacm function for an errno: 0, or -1 with errno set.
static inline int result(int err)
{
	if (!err)
		return 0;
	errno = err;
	return -1;
}

static inline uint32_t qp_handle(struct rdma_cm_id *id) { return id->qp ? id->qp->handle : 0; }

// open_cm_device returns the device with the engine's number dev, or NULL with errno set.
struct cm_device *open_cm_device(int dev);
// default_xrcd returns the XRC domain of a device for programs that specify none, or NULL with
// errno set.
struct ibv_xrcd *default_xrcd(struct cm_device *d);

// get_addr copies an address, of AF_INET or AF_INET6, for the engine. It returns 0 or an errno.
int get_addr(struct sr_cm_addr *to, const struct sockaddr *from);

struct cm_id *alloc_id(struct rdma_event_channel *ch, void *context, int port_space, enum ibv_qp_type type);
void free_id(struct cm_id *s);
// create_id is rdma_create_id with a QP type.
int create_id(struct rdma_event_channel *ch, struct rdma_cm_id **id, void *context, int port_space, enum ibv_qp_type type);
// refresh copies an ID's addresses, device and route from the engine. It returns 0 or an errno.
int refresh(struct cm_id *s);
// set_path sets the path record of a resolved route in the same way as librdmacm does on Ethernet.
void set_path(struct cm_id *s);
// complete returns the result of a call whose operation ends with an event. A synchronous ID waits
// for the event.
int complete(struct cm_id *s, int err);
// ack_own_event acknowledges the event that a synchronous ID holds in its field event.
void ack_own_event(struct rdma_cm_id *id);
// wait_acks waits until n events of an ID are acknowledged. If the thread is cancelled meanwhile,
// it calls stop with the ID.
void wait_acks(struct cm_id *s, uint32_t n, void (*stop)(struct cm_id *));

#endif
