// Declarations that the files of libibverbs.so.1 share. Programs see the structures of
// <infiniband/verbs.h>, whose public fields are kept here. Each structure stands for an object of
// the engine (libsoftrnic.so). The field "handle" is the object's handle.
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

// verbs.h defines macros with these names.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_get_device_list

// Values of enumerations of verbs.h that older headers do not have: IBV_WR_FLUSH,
// IBV_WR_ATOMIC_WRITE, IBV_QP_EX_WITH_FLUSH, IBV_ODP_SUPPORT_FLUSH and
// IBV_ODP_SUPPORT_ATOMIC_WRITE.
enum { WR_FLUSH = 14, WR_ATOMIC_WRITE = 15, QP_EX_WITH_FLUSH = 1 << 11, ODP_SUPPORT_FLUSH = 1 << 6, ODP_SUPPORT_ATOMIC_WRITE = 1 << 7 };

// PUBLIC marks a function that programs call. All others are hidden.
#define PUBLIC __attribute__((visibility("default")))
// EXPORTED gives a function the name that programs call. The newest verbs.h declares it with
// structures that older ones do not have.
#define EXPORTED(name) __asm__(#name)

// The engine's functions. Each returns ENODEV before front_load has succeeded, also in a child
// after fork. A thread is attached to the engine at its first call.
extern const struct sr_engine *current_engine;
#define engine attached_engine()

// The state of the calling thread in the engine. 0: the engine does not know the thread.
extern __thread int thread_state __attribute__((tls_model("initial-exec")));
enum { ATTACHED = 1, COUNTED };
void attach_thread(void);

static inline const struct sr_engine *attached_engine(void)
{
	if (__builtin_expect(!thread_state, 0))
		attach_thread();
	return current_engine;
}

// within_limits reports whether the process may have what the engine takes (limits.c).
int within_limits(void);

// load_copy loads a copy of the engine's file, for a child after fork (copy.c). It returns the
// library, or NULL after it has printed why.
void *load_copy(const char *path);

// front_load loads the engine once and opens the devices. It returns 0 or an errno. libibverbs.so.1
// exports it for librdmacm.so.1, with the version SOFTRNIC_1.
PUBLIC int front_load(void);
// front_engine returns the value of engine. It is exported like front_load.
PUBLIC const struct sr_engine *front_engine(void);

// The number of processes with an engine from which this one descends by fork. It is exported like
// front_load.
PUBLIC extern unsigned int front_generation;

// engine_missing returns ENODEV if there is no engine. Otherwise it returns 0.
static inline int engine_missing(void) { return current_engine->version ? 0 : ENODEV; }

#include "life.h"

// enter_engine is called before each call of the engine that posts, polls or makes progress. The
// engine counts the threads that make such calls.
void count_thread(void);

static inline void enter_engine(void)
{
	if (__builtin_expect(thread_state != COUNTED, 0))
		count_thread();
}

struct device {
	struct ibv_device ibv;
	struct sr_device sr;
	int index;
	int described;  // attr and ex are known
	size_t dm_used; // bytes of device memory allocated
	struct sr_device_attr attr;
	struct sr_device_attr_ex ex;
	// Zeros for providers that read beyond struct ibv_device. mlx5dv and efadv do so to find out
	// whether a device is theirs.
	char zeros[1024];
};

// The devices of the process. They are never freed.
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

// The idle state of a channel, shared by the threads that wait for its events; see idle.c.
struct channel_idle {
	const struct sr_idle *policy; // the device's
	int may_spin;
	uint32_t assumed; // > 0: the program is assumed to wait in ibv_get_cq_event
	int64_t spin;     // how long a thread spins for an event before it sleeps, in nanoseconds
};

struct comp_channel {
	struct ibv_comp_channel ibv;
	struct life life;
	uint32_t handle;
	struct channel_idle idle;
	uint32_t taken;  // events read from the descriptor so far
	uint32_t events  // events added so far, less those dropped; written by the engine
		__attribute__((aligned(64)));
};

// The largest number of completions that a CQ takes from the engine at once.
#define CQ_BATCH 16

struct cq {
	struct ibv_cq_ex ibv; // begins like struct ibv_cq
	uint32_t ready        // not 0: the engine has completions or an error; written only by the engine
		__attribute__((aligned(64)));
	unsigned int empty    // consecutive empty polls since the last one that entered the engine
		__attribute__((aligned(64)));
	unsigned int polls_per_call; // this many polls of the empty CQ enter the engine once
	unsigned int check_from; // after this many empty polls, a poll checks arrivals
	const struct sr_idle *policy; // the device's
	struct sr_arrivals *arrivals; // the device's
	struct sr_events events;
	struct life life;
	struct ibv_context *made_by;
	pthread_mutex_t lock;    // guards the fields below; held between start_poll and end_poll
	unsigned int empty_calls; // consecutive empty polls that entered the engine
	int64_t slept_at;        // when a poll last began to sleep
	int at, n;               // completions [at, n) are taken from the engine and not yet polled
	int taking;              // a call of the engine is taking completions; n is not yet updated
	struct sr_wc wc[CQ_BATCH];
	struct sr_wc_ex ex[CQ_BATCH]; // if stamped
	int stamped;
	const void *poller;           // the thread that called the engine last
	struct cq *pair;              // the CQ whose completions are taken by the same call, or NULL
	int using_pair;               // a poll of this CQ uses the pair
};

struct qp {
	union {
		struct ibv_qp_ex ibv; // begins like struct ibv_qp
		struct {
			char older[offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof(void (*)(void))];
			// The last function of struct ibv_qp_ex, which rdma-core 44 does not have.
			void (*wr_flush)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, size_t length, uint8_t type, uint8_t level);
		};
	};
	struct sr_events events;
	struct life life;
	struct ibv_qp_cap cap;
	int sq_sig_all;
	int flags;            // for post_send
	struct ibv_context *made_by;
	unsigned int empty_posts; // consecutive posts that returned no completions, modulo posts_per_take
	pthread_mutex_t list; // held between wr_start and wr_complete
	// Receive requests are posted in the ring, if its size is not 0; see recvring.c.
	struct sr_recv_ring recvs;
	pthread_mutex_t recvs_lock; // guards the fields below, and is held in calls of post_recv
	uint32_t recvs_next;        // the slot of the next request
	uint32_t recvs_posted;      // requests posted, in the ring or by calls
	int n, room, error;   // requests in wrs and room for them; the first error since wr_start
	struct ibv_send_wr *wrs;
	struct ibv_sge *sges; // max_send_sge for each request
	char *inline_data;    // max_inline_data for each request
};

struct srq {
	struct ibv_srq ibv;
	struct ibv_context *made_by;
	struct sr_events events;
	struct life life;
	uint32_t num; // of an XRC SRQ; otherwise 0
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
	struct dm *dm; // the device memory that it covers, or NULL
};

// FOREIGN tells whether the program has changed the context field of an object after its creation.
// In this case the kernel does not find the handle in the new context, and returns ENOENT.
#define FOREIGN(kind, v) ((v)->context != ((struct kind *)(v))->made_by)

// Device memory is memory of the process. The program does not get its address.
struct dm {
	struct ibv_dm ibv;
	struct life life;
	int dev;
	size_t length;
	int users; // memory regions
	char *memory;
};

// The device memory of each device, in bytes.
#define MAX_DM_SIZE (256 << 10)

struct mw {
	struct ibv_mw ibv;
	struct ibv_context *made_by;
	struct life life;
};

struct ah {
	struct ibv_ah ibv;
	struct ibv_context *made_by;
	// Posts use this handle and not ibv.handle, as hardware uses its own copy of the address.
	uint32_t handle;
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

// fail returns err, and sets errno to it unless it is 0.
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
void count_ack(const struct life *life, pthread_mutex_t *m, pthread_cond_t *cond, uint32_t *count, unsigned int n);
// wait_acked waits until the program has acknowledged all events of an object that is being
// destroyed. If the thread is cancelled meanwhile, the program can destroy the object again.
void wait_acked(struct life *life, pthread_mutex_t *m, pthread_cond_t *cond, uint32_t *acknowledged, uint32_t *given);

// These fill in the functions of a new object.
void context_ops(struct context *c);
void cq_ops(struct cq *cq, uint64_t wc_flags);
void qp_ops(struct qp *qp, uint64_t send_ops);

// wr_opcode_str is the private ibv_wr_opcode_str.
const char *wr_opcode_str(enum ibv_wr_opcode opcode);
// query_gid_type is the private ibv_query_gid_type.
int query_gid_type(struct ibv_context *c, uint8_t port, unsigned int index, int *type);
int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
// A request between QPs of one process is often complete as soon as it is posted. The call that
// posts it then returns its completion too, and the next poll need not call the engine. If the call
// should return completions, take_with_post returns the send CQ, locked and empty, otherwise NULL.
// taken_with_post unlocks the CQ. got is the number of completions in its array.
struct cq *take_with_post(struct qp *qp, struct ibv_send_wr *wr);
void taken_with_post(struct qp *qp, struct cq *cq, int got);
// pair_cqs pairs the two CQs of a QP. One thread often polls both. A call of the engine for one
// then takes completions of the other too.
void pair_cqs(struct ibv_cq *a, struct ibv_cq *b);
// unlock_pairs makes it possible to pair CQs in a child after fork.
void unlock_pairs(void);
// drop_completions removes the completions of a QP that were taken from the engine and not yet
// polled. The QP is in RESET.
void drop_completions(struct ibv_cq *cq, uint32_t qp_num);
int req_notify_cq(struct ibv_cq *cq, int solicited_only);

// The idle policy: idle.c.

// The action of a poll that found nothing, after it has unlocked the CQ. A thread that sleeps may
// be cancelled.
enum idle_action { NONE, YIELD, SLEEP };

int64_t now(void); // CLOCK_MONOTONIC, in nanoseconds
void start_idle(struct cq *q, const struct sr_idle *policy);
void end_idle(struct cq *q);
enum idle_action empty_call(struct cq *q);
void idle(struct cq *q, enum idle_action action);
void start_channel_idle(struct channel_idle *ch, const struct sr_idle *policy);
int waits_in_get(const struct channel_idle *ch);
void asked_for_event(struct channel_idle *ch, int pending);
int64_t spin_time(const struct channel_idle *ch);
void channel_slept(struct channel_idle *ch, int64_t ns);

int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
// SET_BAD sets *bad to the first request that was not posted. Send and receive requests both have
// the field next.
#define SET_BAD(wr, done, bad) \
	do { \
		while (done-- > 0) \
			wr = wr->next; \
		*bad = wr; \
	} while (0)

// make_recv_ring gives a new QP a ring of receive requests if it can have one.
void make_recv_ring(struct qp *q);
void free_recv_ring(struct qp *q);
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
