// Many threads make all calls of the libraries (calls.h) during one of these events:
//
//	stress ADDR SEED run SECONDS     nothing
//	stress ADDR SEED cancel N        N threads are cancelled, one after the other, anywhere
//	stress ADDR SEED fork N          N children make the calls too; every tenth opens a device
//	stress ADDR SEED signal SECONDS  timers and other threads send signals
//	stress ADDR SEED first N         N threads get signals in their first calls
//	stress ADDR SEED exit            the process exits with 7
//	stress ADDR SEED exit-in-call    a handler of a signal that interrupts a call exits with 7
//	stress ADDR SEED exit-in-malloc  the same of a signal that interrupts malloc or free
//
// The program exits with 1 at the first failed check. A call that does not return in HUNG seconds
// ends it with SIGALRM.
#define _GNU_SOURCE
#include <dirent.h>
#include <malloc.h>
#include <sys/time.h>
#include <sys/wait.h>
#include "calls.h"

#define HUNG 30
#define THREADS 4

static void *caller(void *v)
{
	call_groups((uintptr_t)v, 0);
	return NULL;
}

static void *endless_caller(void *v)
{
	call_groups((uintptr_t)v, 1);
	return NULL;
}

static void start(pthread_t *t, void *(*f)(void *), int i)
{
	CHECK(!pthread_create(t, NULL, f, (void *)(uintptr_t)(seed * 1000003u + i)));
}

static void join(pthread_t t)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += HUNG;
	if (pthread_timedjoin_np(t, NULL, &until)) {
		printf("a thread does not end. Those that call, by what they called last:\n");
		for (int i = 0; i < MOST; i++)
			if (called[i] > 0)
				printf(" %s", groups_of_calls[called[i] - 1].name);
		printf("\n");
		_exit(1);
	}
}

static void pause_for(int us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000};
	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static void run(double seconds)
{
	pthread_t t[2 * THREADS];
	for (int i = 0; i < 2 * THREADS; i++)
		start(&t[i], caller, i);
	pause_for(seconds * 1e6);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2 * THREADS; i++)
		join(t[i]);
}

static int descriptors(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

// still_polls: a cancelled thread has left no lock, and no event of the others is lost.
static void still_polls(void)
{
	struct ibv_wc wc;
	alarm(HUNG);
	for (int i = 0; i < 300; i++)
		CHECK(ibv_poll_cq(common.cq, 1, &wc) >= 0);
	alarm(0);
}

static void cancel(int n)
{
	size_t bytes = 0;
	int fds = 0;
	pthread_t others[2]; // so that a thread waits for a lock
	for (int i = 0; i < 2; i++)
		start(&others[i], caller, -1 - i);
	for (int i = 0; i < n; i++) {
		pthread_t t;
		start(&t, endless_caller, i);
		pause_for(any(8) ? any(3000) : any(30000));
		CHECK(!pthread_cancel(t));
		join(t);
		still_polls();
		if (i == n / 4) {
			bytes = mallinfo2().uordblks;
			fds = descriptors();
		}
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		join(others[i]);
	long more = (long)mallinfo2().uordblks - (long)bytes, per = more / (n - n / 4);
	printf("%d threads cancelled: %ld more bytes in use than after a quarter of them, %d descriptors more\n", n, more, descriptors() - fds);
	// Some hundred destroyed objects of each kind are kept for a while. After a quarter of many
	// threads the number is constant.
	CHECK(descriptors() <= fds + 4 && (more < (n < 4000 ? 2 << 20 : 1 << 18) || per < 8));
}

// The parent's objects are errors for a child. It returns the number of the first call that
// succeeds.
#define CHILD(call) \
	do { \
		line = __LINE__; \
		errno = 0; \
		if (!(call)) \
			_exit(2); \
	} while (0)

static volatile int *at_line; // in memory that the child shares

static void child(int opens)
{
#define line (*at_line)
	struct ibv_wc wc[4];
	struct ibv_cq *of;
	struct ibv_async_event ae;
	struct rdma_cm_event *ce;
	struct rdma_cm_id *id;
	struct ibv_port_attr port;
	struct ibv_recv_wr rr = {0}, *bad_rr;
	struct ibv_send_wr sr = {0}, *bad_sr;
	struct ibv_qp_attr qa = {.qp_state = IBV_QPS_ERR};
	struct ibv_qp_init_attr qi, qp = {.send_cq = common.cq, .recv_cq = common.cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_srq_attr sa;
	struct ibv_srq_init_attr si = {.attr = {1, 1, 0}};
	struct ibv_ah_attr ah = {.port_num = 1};
	struct pollfd pf = {.fd = common_rsocket, .events = POLLIN};
	void *context;
	char c;
	int n, fd;
	for (int i = 0; i < 1000; i++)
		CHILD((n = ibv_poll_cq(common.cq, 4, wc)) == 0 || (n == -1 && errno == ENODEV));
	CHILD(!ibv_query_device(ctx, &(struct ibv_device_attr){0}));
	CHILD(ibv_query_port(ctx, 1, &port) == ENODEV);
	CHILD(ibv_get_async_event(ctx, &ae) == -1 && errno == ENODEV);
	CHILD(!ibv_alloc_pd(ctx) && errno == ENODEV);
	CHILD(!ibv_reg_mr(pd, common.memory, 64, 0) && errno == ENODEV);
	CHILD(!ibv_alloc_mw(pd, IBV_MW_TYPE_1) && errno == ENODEV);
	CHILD(!ibv_create_ah(pd, &ah) && errno == ENODEV);
	CHILD(!ibv_create_comp_channel(ctx) && errno == ENODEV);
	CHILD(!ibv_create_cq(ctx, 4, NULL, NULL, 0) && errno == ENODEV);
	CHILD(!ibv_create_qp(pd, &qp) && errno == ENODEV);
	CHILD(!ibv_create_srq(pd, &si) && errno == ENODEV);
	CHILD(ibv_get_cq_event(common_channel, &of, &context) == -1 && errno == ENODEV);
	CHILD(ibv_req_notify_cq(common_events, 0) == ENODEV);
	CHILD(ibv_resize_cq(common.cq, 128) == ENODEV);
	CHILD((ibv_ack_cq_events(common_events, 1), 1));
	CHILD((ibv_ack_async_event(&(struct ibv_async_event){.event_type = IBV_EVENT_CQ_ERR, .element.cq = common.cq}), 1));
	CHILD(ibv_post_send(common.qp, &sr, &bad_sr) == ENODEV);
	CHILD(ibv_post_recv(common.qp, &rr, &bad_rr) == ENODEV);
	CHILD(ibv_post_srq_recv(common_srq, &rr, &bad_rr) == ENODEV);
	CHILD(ibv_modify_qp(common.qp, &qa, IBV_QP_STATE) == ENODEV);
	CHILD(ibv_query_qp(common.qp, &qa, IBV_QP_STATE, &qi) == ENODEV);
	CHILD(ibv_query_srq(common_srq, &sa) == ENODEV);
	CHILD(ibv_destroy_qp(common.qp) == ENODEV);
	CHILD(ibv_destroy_srq(common_srq) == ENODEV);
	CHILD(ibv_destroy_cq(common.cq) == ENODEV);
	CHILD(ibv_destroy_comp_channel(common_channel) != 0);
	CHILD(ibv_dereg_mr(common.mr) == ENODEV);
	CHILD(ibv_dealloc_pd(pd) == ENODEV);
	CHILD(rdma_get_cm_event(common_cm, &ce) == -1 && errno == ENODEV);
	CHILD(rdma_create_id(common_cm, &id, NULL, RDMA_PS_TCP) == -1 && errno == ENODEV);
	CHILD(rpoll(&pf, 1, -1) == -1 && errno == ENODEV);
	CHILD(rrecv(common_rsocket, &c, 1, 0) == -1 && errno == ENODEV);
	struct ibv_device **list = NULL;
	// Over shared memory and sockets, the parent has the address for itself.
	const char *link = getenv("SOFTRNIC_LINK");
	CHILD(!opens || (list = ibv_get_device_list(&n)) || (errno == ENODEV && link && strcmp(link, "pipe")));
	if (list) {
		struct loopback own_loop;
		ibv_free_device_list(list);
		device_open();
		loopback_open(&own_loop);
		loopback_write(&own_loop, (uintptr_t)own_loop.memory, own_loop.mr->lkey, (uintptr_t)own_loop.memory + 4096,
			own_loop.mr->rkey, 64);
		CHILD(wait_for(own_loop.cq).status == IBV_WC_SUCCESS);
		CHILD(ibv_post_send(common.qp, &sr, &bad_sr) && ibv_resize_cq(common.cq, 128) && ibv_query_srq(common_srq, &sa));
		CHILD(ibv_destroy_cq(common.cq) == ENODEV && rdma_get_cm_event(common_cm, &ce) == -1 && errno == ENODEV);
		CHILD((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0 && !rclose(fd));
		loopback_close(&own_loop);
		CHILD(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	} else {
		CHILD(!ibv_close_device(ctx));
	}
	CHILD(!rclose(common_rsocket));
	CHILD((rdma_destroy_event_channel(common_cm), 1));
	line = 0;
#undef line
}

static void forks(int n)
{
	pthread_t t[THREADS];
	at_line = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(at_line != MAP_FAILED);
	for (int i = 0; i < THREADS; i++)
		start(&t[i], caller, i);
	for (int i = 0; i < n; i++) {
		pause_for(any(2000));
		alarm(HUNG);
		pid_t p = fork();
		CHECK(p >= 0);
		if (!p) {
			alarm(HUNG / 2);
			child(i % 10 == 0);
			if (i % 2)
				_exit(0);
			exit(0);
		}
		int status;
		pid_t got;
		while ((got = waitpid(p, &status, 0)) < 0 && errno == EINTR)
			;
		CHECK(got == p);
		if (!WIFEXITED(status) || WEXITSTATUS(status)) {
			printf("child %d: status %#x at line %d\n", i, status, *at_line);
			exit(1);
		}
		alarm(0);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < THREADS; i++)
		join(t[i]);
	printf("%d children\n", n);
}

static __thread int of_program;
static long handled, elsewhere;

// handle needs a stack like that of printf, which was not created for it.
static void handle(int sig)
{
	char b[16384];
	memset(b, sig, sizeof b);
	__asm__ volatile("" : : "r"(b) : "memory");
	__atomic_add_fetch(of_program ? &handled : &elsewhere, 1, __ATOMIC_RELAXED);
}

static void on(int sig, int flags)
{
	struct sigaction a = {.sa_flags = flags};
	a.sa_handler = handle;
	CHECK(!sigaction(sig, &a, NULL));
}

// take_signals is called by the program's threads, which begin with all signals blocked.
static void take_signals(void)
{
	sigset_t none;
	sigemptyset(&none);
	of_program = 1;
	CHECK(!pthread_sigmask(SIG_SETMASK, &none, NULL));
}

static void *signalled_caller(void *v)
{
	take_signals();
	return caller(v);
}

// reset sets default handlers for unused signals, like programs that reset all signals.
static void *reset(void *unused)
{
	(void)unused;
	take_signals();
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		signal(SIGSTKFLT, SIG_DFL);
		signal(SIGSTKFLT, SIG_IGN);
		for (int sig = SIGRTMIN + 1; sig < SIGRTMAX; sig++)
			signal(sig, SIG_DFL);
		CHECK(!setuid(getuid())); // by a signal to each thread, including Go's
	}
	return NULL;
}

// blocks reports whether a thread has blocked those signals that Go unblocks and the program may
// use.
static int blocks(const char *tid)
{
	const unsigned long long want = 1ull << (SIGCHLD - 1) | 1ull << (SIGPROF - 1) | 1ull << (SIGSTKFLT - 1) | 1ull << (34 - 1);
	char path[300], text[4096];
	snprintf(path, sizeof path, "/proc/self/task/%s/status", tid);
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
	if (f)
		fclose(f);
	text[n] = 0;
	char *line = strstr(text, "SigBlk:");
	// Without a line it has ended.
	return !line || (strtoull(line + strlen("SigBlk:"), NULL, 16) & want) == want;
}

// gos_threads_block checks every thread except the first two, which are the program's, when all
// have started.
static void gos_threads_block(const char *mine, const char *early)
{
	for (int tries = 0, open = 1; open; tries++) {
		struct dirent *e;
		DIR *d = opendir("/proc/self/task");
		CHECK(d && tries < 300);
		open = 0;
		while ((e = readdir(d)))
			open += e->d_name[0] != '.' && strcmp(e->d_name, mine) && strcmp(e->d_name, early) && !blocks(e->d_name);
		closedir(d);
		pause_for(open ? 10000 : 0);
	}
}

static char early_tid[16];

static void *early_reset(void *unused)
{
	snprintf(early_tid, sizeof early_tid, "%d", gettid());
	return reset(unused);
}

static void signals(double seconds)
{
	char mine[16];
	snprintf(mine, sizeof mine, "%d", gettid());
	gos_threads_block(mine, early_tid);
	pthread_t t[THREADS + 1];
	struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
	sigset_t all, before;
	sigfillset(&all);
	CHECK(!pthread_sigmask(SIG_SETMASK, &all, &before));
	CHECK(!pthread_create(&t[THREADS], NULL, reset, NULL));
	for (int i = 0; i < THREADS; i++)
		start(&t[i], signalled_caller, i);
	CHECK(!pthread_sigmask(SIG_SETMASK, &before, NULL));
	on(SIGALRM, SA_RESTART);
	on(SIGPROF, SA_RESTART);
	on(SIGVTALRM, 0); // EINTR
	on(SIGCHLD, SA_RESTART);
	on(SIGUSR1, 0);
	on(SIGRTMIN, SA_RESTART);
	CHECK(!setitimer(ITIMER_REAL, &often, NULL) && !setitimer(ITIMER_PROF, &often, NULL) && !setitimer(ITIMER_VIRTUAL, &often, NULL));
	for (double end = now() + seconds; now() < end;) {
		static const int some[] = {SIGUSR1, SIGCHLD};
		pthread_kill(t[any(THREADS)], some[any(2)]);
		kill(getpid(), any(2) ? SIGCHLD : SIGRTMIN);
		pause_for(any(500));
	}
	CHECK(!setitimer(ITIMER_REAL, &never, NULL) && !setitimer(ITIMER_PROF, &never, NULL) && !setitimer(ITIMER_VIRTUAL, &never, NULL));
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i <= THREADS; i++)
		join(t[i]);
	printf("%ld signals handled, %ld by threads that are not the program's\n", handled, elsewhere);
	CHECK(handled > 100 && !elsewhere);
}

static int first_calls;

static void *first_call(void *v)
{
	take_signals();
	CHECK(!ibv_dealloc_pd(ibv_alloc_pd(ctx)));
	__atomic_add_fetch(&first_calls, 1, __ATOMIC_RELAXED);
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) // so that the next thread gets a stack in Go of its own
		pause_for(1000);
	return v;
}

// first_signals: a handler needs more stack than Go gives a thread of C of itself. The program
// changes its user meanwhile, for which each thread takes a signal.
static void first_signals(int n)
{
	static const int some[] = {SIGCHLD, SIGPROF};
	pthread_t resets, t[n];
	for (int i = 0; i < 2; i++)
		on(some[i], SA_RESTART);
	on(SIGRTMIN, SA_RESTART);
	CHECK(!pthread_create(&resets, NULL, reset, NULL));
	for (int i = 0; i < n; i++) {
		start(&t[i], first_call, i);
		do
			for (int k = 0; k < 3 && k <= i; k++)
				pthread_kill(t[i - k], any(3) ? some[any(2)] : SIGRTMIN);
		while (__atomic_load_n(&first_calls, __ATOMIC_RELAXED) < i - 2);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < n; i++)
		join(t[i]);
	join(resets);
	CHECK(handled > 0);
}

static void *exits(void *v)
{
	seed = (uintptr_t)v;
	pause_for(any(200000));
	__atomic_store_n(&leaving, 1, __ATOMIC_RELAXED);
	exit(7);
}

static pthread_t interrupted;

static void *interrupts(void *v)
{
	seed = (uintptr_t)v;
	pause_for(any(200000));
	__atomic_store_n(&leaving, 1, __ATOMIC_RELAXED);
	pthread_kill(interrupted, SIGUSR2);
	return NULL;
}

static void exit_in_handler(int sig)
{
	(void)sig;
	exit(7);
}

int main(int argc, char **argv)
{
	CHECK(argc > 3);
	setvbuf(stdout, NULL, _IONBF, 0);
	seed = atoi(argv[2]);
	of_program = 1;
	const char *what = argv[3];
	double n = argc > 4 ? atof(argv[4]) : 0;
	pthread_t early;
	if (!strcmp(what, "signal")) // also while the engine is loaded
		CHECK(!pthread_create(&early, NULL, early_reset, NULL));
	// Signals that the program has blocked stay blocked in every thread that makes calls.
	sigset_t mask, after;
	sigemptyset(&mask);
	sigaddset(&mask, SIGCHLD);
	sigaddset(&mask, SIGPROF);
	sigaddset(&mask, SIGRTMIN);
	CHECK(!pthread_sigmask(SIG_BLOCK, &mask, NULL));
	begin(argv[1]);
	CHECK(!pthread_sigmask(SIG_UNBLOCK, &mask, &after));
	CHECK(sigismember(&after, SIGCHLD) && sigismember(&after, SIGPROF) && sigismember(&after, SIGRTMIN));
	if (!strcmp(what, "run"))
		run(n);
	else if (!strcmp(what, "cancel"))
		cancel(n);
	else if (!strcmp(what, "fork"))
		forks(n);
	else if (!strcmp(what, "signal"))
		signals(n);
	else if (!strcmp(what, "first"))
		first_signals(n);
	else if (!strcmp(what, "exit")) {
		pthread_t t;
		CHECK(!pthread_create(&t, NULL, exits, (void *)(uintptr_t)seed));
		run(1000);
	} else if (!strcmp(what, "exit-in-call")) {
		pthread_t t;
		interrupted = pthread_self();
		signal(SIGUSR2, exit_in_handler);
		CHECK(!pthread_create(&t, NULL, interrupts, (void *)(uintptr_t)seed));
		call_groups(seed, 0);
	} else if (!strcmp(what, "exit-in-malloc")) {
		pthread_t t;
		struct ibv_device **list = ibv_get_device_list(NULL);
		CHECK(list && ibv_open_device(list[0]));
		interrupted = pthread_self();
		signal(SIGUSR2, exit_in_handler);
		CHECK(!pthread_create(&t, NULL, interrupts, (void *)(uintptr_t)seed));
		for (;;) { // of sizes that take the heap's lock
			void *volatile a = malloc(3000), *volatile b = malloc(5000);
			free(a);
			free(b);
		}
	}
	return 0;
}
