// What the files of libibverbs.so.1 share. Programs see the structures of <infiniband/verbs.h>, whose public fields are kept
// here; behind each stands an object of the engine (libsoftrnic.so), whose handle is in the field "handle".
#ifndef FRONT_H
#define FRONT_H

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <infiniband/verbs.h>

#include "../libsoftrnic/softrnic.h"

// verbs.h has macros of these names around the functions.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_get_device_list

// A function that programs call. Everything else is hidden.
#define PUBLIC __attribute__((visibility("default")))

// The engine's functions. Before front_load has succeeded, and in a child after fork, each returns ENODEV. A thread meets the engine
// at its first call.
extern const struct sr_engine *current_engine;
#define engine reach_engine()

// What the engine knows of a thread.
extern __thread int known_thread __attribute__((tls_model("initial-exec")));
enum { MET = 1, COUNTED };
void meet_engine(void);

static inline const struct sr_engine *reach_engine(void)
{
	if (__builtin_expect(!known_thread, 0))
		meet_engine();
	return current_engine;
}

// front_load loads the engine, if it is not, and opens the devices. It returns 0 or an errno. libibverbs.so.1 exports it for
// librdmacm.so.1, with the node SOFTRNIC_1.
PUBLIC int front_load(void);
// front_engine returns the value of engine, and is exported like front_load.
PUBLIC const struct sr_engine *front_engine(void);

// lost returns ENODEV where there is no engine: in a child after fork, which shares the parent's descriptors and must not read them.
static inline int lost(void) { return current_engine->version ? 0 : ENODEV; }

#include "life.h"

// entering is called before a call of the engine that posts, polls or makes progress: the engine knows how many threads do.
void count_thread(void);

static inline void entering(void)
{
	if (__builtin_expect(known_thread != COUNTED, 0))
		count_thread();
}

struct device {
	struct ibv_device ibv;
	struct sr_device sr;
	int index;
	int described; // attr and ex are known
	struct sr_device_attr attr;
	struct sr_device_attr_ex ex;
	// Providers that read behind ibv_device, as mlx5dv and efadv do to see whether a device is theirs, find zeros.
	char zeros[1024];
};

// Devices of the process. They are never freed.
extern struct device devices[SR_MAX_DEVICES];
extern int device_count;

struct context {
	struct verbs_context ex; // its last field is struct ibv_context
	struct life life;
	uint32_t handle;
	int dev;
};

static inline struct context *to_context(struct ibv_context *c)
{
	return (struct context *)((char *)c - offsetof(struct context, ex.context));
}

struct comp_channel {
	struct ibv_comp_channel ibv;
	struct life life;
	uint32_t handle;
	int may_look;
	int patience;    // above 0: the program waits in ibv_get_cq_event, as far as we know
	int64_t look;    // how long it looks for an event before it sleeps, in nanoseconds
	uint32_t taken;  // events that were read from the descriptor
	uint32_t events  // that were ever added to it, less those dropped; the engine writes it
		__attribute__((aligned(64)));
};

// waits_here reports whether the program waits for events of a channel in ibv_get_cq_event, not in poll or epoll.
int waits_here(struct ibv_comp_channel *ch);

// How many completions a CQ takes from the engine at once.
#define CQ_BATCH 16

struct cq {
	struct ibv_cq_ex ibv; // begins as struct ibv_cq does
	uint32_t ready        // not 0: the engine, which alone writes it, has completions or an error
		__attribute__((aligned(64)));
	unsigned int empty    // polls in a row that found nothing, since the last of them that entered the engine
		__attribute__((aligned(64)));
	unsigned int interval; // of the polls of the empty CQ, one in so many enters the engine
	unsigned int look_from; // from which of those polls on the arrivals are looked at
	struct sr_arrivals *arrivals; // the device's
	struct sr_events events;
	struct life life;
	struct ibv_context *made_by;
	pthread_mutex_t lock;    // of what follows; held between start_poll and end_poll
	unsigned int in_vain;    // polls that entered the engine and found nothing
	double rested;           // µs: when a poll last slept
	int at, n;               // completions [at, n) have been taken from the engine and not been polled
	int taking;              // they are being taken: the engine may have given them, and n does not say so yet
	struct sr_wc wc[CQ_BATCH];
	struct sr_wc_ex ex[CQ_BATCH]; // if stamped
	int stamped;
	const void *poller;           // the thread that has called the engine last
	struct cq *other;             // whose completions are taken too, or NULL
	int borrowing;                // they are being taken
};

struct qp {
	struct ibv_qp_ex ibv; // begins as struct ibv_qp does
	struct sr_events events;
	struct life life;
	struct ibv_qp_cap cap;
	int sq_sig_all;
	int flags;            // for post_send
	struct ibv_context *made_by;
	unsigned int in_vain; // posts in a row, modulo POSTS_PER_TRY, since one that came back with completions
	pthread_mutex_t list; // held between wr_start and wr_complete
	int n, room, error;   // requests in wrs; the first error since wr_start
	struct ibv_send_wr *wrs;
	struct ibv_sge *sges; // max_send_sge for each request
	char *inline_data;    // max_inline_data for each request
};

struct srq {
	struct ibv_srq ibv;
	struct ibv_context *made_by;
	struct sr_events events;
	struct life life;
	uint32_t num; // of an XRC SRQ
};

struct xrcd {
	struct ibv_xrcd ibv;
	struct life life;
	struct ibv_context *made_by;
	uint32_t handle;
};

struct mr {
	struct ibv_mr ibv;
	struct life life;
	struct ibv_context *made_by;
	struct dm *dm; // whose memory it is of; or NULL
};

// FOREIGN tells whether an object's context is another than that which made it. To the kernel its handle is then one of nothing: ENOENT.
#define FOREIGN(kind, v) ((v)->context != ((struct kind *)(v))->made_by)

// Device memory is memory of the process that has no address for the program.
struct dm {
	struct ibv_dm ibv;
	struct life life;
	int dev;
	size_t length;
	int users; // memory regions
	char *memory;
};

// How much of it each device has.
#define MAX_DM_SIZE (256 << 10)

struct mw {
	struct ibv_mw ibv;
	struct ibv_context *made_by;
	struct life life;
};

struct ah {
	struct ibv_ah ibv;
	struct ibv_context *made_by;
	uint32_t handle; // what is posted goes by this, as in hardware, where the address is in the structure
	struct life life;
};

struct flow {
	struct ibv_flow ibv;
	struct ibv_context *made_by;
	struct life life;
};

struct td {
	struct ibv_td ibv;
	struct life life;
	int users; // parent domains
};

struct parent_domain {
	struct ibv_pd ibv; // has the handle of the PD
	struct life life;
	struct ibv_pd *of; // NULL in a PD
	struct ibv_context *made_by;
	struct ibv_td *td;
	int users;         // parent domains of a PD
};

// fail sets errno to a number that is not 0, and returns it.
static inline int fail(int err)
{
	if (err)
		errno = err;
	return err;
}

// minus_one sets errno and returns -1.
static inline int minus_one(int err)
{
	errno = err;
	return -1;
}

// fail_null sets errno and returns NULL.
static inline void *fail_null(int err)
{
	errno = err;
	return NULL;
}

// count_ack counts acknowledgements of events.
void count_ack(pthread_mutex_t *m, pthread_cond_t *cond, uint32_t *count, unsigned int n);
// wait_acked waits until the program has acknowledged as many events of an object, which is being destroyed, as it was given. A thread
// that is cancelled meanwhile leaves the rest of its destruction to the next who destroys it.
void wait_acked(struct life *life, pthread_mutex_t *m, pthread_cond_t *cond, uint32_t *acknowledged, uint32_t *given);

// Filled in for a new context and the objects in it.
void context_ops(struct context *c);
void cq_ops(struct cq *cq, uint64_t wc_flags);
void qp_ops(struct qp *qp, uint64_t send_ops);

// query_gid_type is the private ibv_query_gid_type.
int query_gid_type(struct ibv_context *c, uint8_t port, unsigned int index, int *type);
int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
// A request between QPs of one process is often complete when it has been posted. To spare the program's poll a call of the
// engine, its completion comes with the call that posts it: take_with_post returns the send CQ, locked and without completions,
// if that is worth while, and else NULL; taken_with_post unlocks it, with the completions that have come to its array.
struct cq *take_with_post(struct qp *qp, struct ibv_send_wr *wr);
void taken_with_post(struct qp *qp, struct cq *cq, int got);
// pair_cqs is called with the two CQs of a QP: one thread often polls both, and a call of the engine for one takes completions of
// the other too.
void pair_cqs(struct ibv_cq *a, struct ibv_cq *b);
// drop_completions removes those of a QP, in RESET, which have been taken from the engine and not been polled.
void drop_completions(struct ibv_cq *cq, uint32_t qp_num);
int req_notify_cq(struct ibv_cq *cq, int solicited_only);
int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct ibv_cq_ex *create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *attr);
int modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);
struct ibv_qp *create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr);
struct ibv_qp *open_qp(struct ibv_context *c, struct ibv_qp_open_attr *attr);
struct ibv_flow *create_flow(struct ibv_qp *qp, struct ibv_flow_attr *attr);
int destroy_flow(struct ibv_flow *flow);
struct ibv_srq *create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *attr);
int get_srq_num(struct ibv_srq *srq, uint32_t *num);
struct ibv_xrcd *open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *attr);
int close_xrcd(struct ibv_xrcd *xrcd);
struct ibv_mr *alloc_null_mr(struct ibv_pd *pd);
int advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *list, uint32_t n);
struct ibv_dm *alloc_dm(struct ibv_context *c, struct ibv_alloc_dm_attr *attr);
int free_dm(struct ibv_dm *dm);
struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access);
struct ibv_mr *reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned int access);
struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int dealloc_mw(struct ibv_mw *mw);
int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
struct ibv_td *alloc_td(struct ibv_context *c, struct ibv_td_init_attr *attr);
int dealloc_td(struct ibv_td *td);
struct ibv_pd *alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *attr);
int modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr);

#endif
