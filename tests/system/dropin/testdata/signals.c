// The program's signals stay its own. Memory that is unmapped under the device is an error,
// whichever handlers SIGSEGV and SIGBUS have. The program exits with 1 at the first failed check.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/time.h>
#include <ucontext.h>
#include "loopback.h"

static volatile sig_atomic_t urgent, profiled, alarmed, on_stack, elsewhere, caught;
static pthread_t program;
static char *alternate;
static sigjmp_buf back;

static void count(int sig)
{
	char here;
	if (!pthread_equal(pthread_self(), program))
		elsewhere++;
	if (&here >= alternate && &here < alternate + SIGSTKSZ)
		on_stack++;
	if (sig == SIGURG)
		urgent++;
	else if (sig == SIGPROF)
		profiled++;
	else
		alarmed++;
}

static void jump(int sig, siginfo_t *info, void *context)
{
	(void)sig; (void)info; (void)context;
	caught++;
	siglongjmp(back, 1);
}

static void jump_simply(int sig) { jump(sig, NULL, NULL); }

// rest sleeps for some µs. usleep would end with the first signal, here one of a timer.
static void rest(int us)
{
	for (double end = now() + us * 1e-6; now() < end;)
		usleep(100);
}

static struct sigaction previous;

// restore_previous does what Python's faulthandler does: it reports, and restores the previous
// handler.
static void restore_previous(int sig)
{
	caught++;
	sigaction(sig, &previous, NULL);
}

static void on(int sig, void (*f)(int), int flags)
{
	struct sigaction a = {.sa_flags = flags};
	a.sa_handler = f;
	sigfillset(&a.sa_mask); // so that the counts are right
	CHECK(!sigaction(sig, &a, NULL));
}

static char *volatile frame; // of the interrupted function

// deep needs more than the stack of a signal, and must be on the interrupted thread's.
static void deep(int sig)
{
	volatile char room[256 << 10];
	memset((char *)room, sig, sizeof room);
	if ((char *)room < frame && (char *)room > frame - (1 << 20))
		caught++;
	if (sig == SIGSEGV)
		siglongjmp(back, 1);
}

static volatile char *volatile nowhere = (char *)16;

static int own_fault(void)
{
	int before = caught;
	if (!sigsetjmp(back, 1))
		*nowhere = 1;
	return caught - before;
}

static void call_engine(void)
{
	struct ibv_pd *own = ibv_alloc_pd(ctx);
	CHECK(own && !ibv_dealloc_pd(own));
}

// on_own_stack raises signals in a thread that has called the engine. Their handlers were installed
// before the engine was loaded, without SA_ONSTACK.
static void *on_own_stack(void *arg)
{
	char here;
	frame = &here;
	call_engine();
	int n = caught;
	CHECK(!raise(SIGUSR1) && caught == n + 1);
	struct sigaction a;
	CHECK(!sigaction(SIGUSR1, NULL, &a) && !(a.sa_flags & SA_ONSTACK));
	return arg;
}

static void *fault_on_own_stack(void *arg)
{
	char here;
	frame = &here;
	call_engine();
	CHECK(own_fault() == 1);
	return arg;
}

// in_thread runs f in a thread of its own, to which no timer's signal is delivered.
static void in_thread(void *(*f)(void *))
{
	pthread_t t;
	sigset_t timers, mask;
	CHECK(!sigemptyset(&timers) && !sigaddset(&timers, SIGALRM) && !sigaddset(&timers, SIGPROF));
	CHECK(!pthread_sigmask(SIG_BLOCK, &timers, &mask) && !pthread_create(&t, NULL, f, NULL) &&
	      !pthread_sigmask(SIG_SETMASK, &mask, NULL) && !pthread_join(t, NULL));
}

// gone posts a WRITE from unmapped memory, and one to it. Each fails, and nothing else happens.
static void gone(const char *when)
{
	struct loopback l;
	loopback_open(&l);
	char *map = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, map, 1 << 16, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	// Nothing else comes there.
	CHECK(mr && mmap(map, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == map);
	int before = caught;
	loopback_write(&l, (uintptr_t)l.memory, l.mr->lkey, (uintptr_t)map, mr->rkey, 64);
	enum ibv_wc_status s = wait_for(l.cq).status;
	if (s != IBV_WC_REM_ACCESS_ERR && s != IBV_WC_REM_OP_ERR) {
		printf("%s: a WRITE to memory that is gone: %s\n", when, ibv_wc_status_str(s));
		exit(1);
	}
	loopback_close(&l);
	loopback_open(&l);
	loopback_write(&l, (uintptr_t)map, mr->lkey, (uintptr_t)l.memory, l.mr->rkey, 64);
	s = wait_for(l.cq).status;
	if (s != IBV_WC_LOC_PROT_ERR || caught != before) {
		printf("%s: a WRITE from memory that is gone: %s; the program's handler was called %d times\n", when, ibv_wc_status_str(s),
			caught - before);
		exit(1);
	}
	CHECK(!ibv_dereg_mr(mr) && !munmap(map, 1 << 16));
	loopback_close(&l);
}

// A truncated file is SIGBUS.
static void cut(void)
{
	struct loopback l;
	loopback_open(&l);
	FILE *f = tmpfile();
	CHECK(f && !ftruncate(fileno(f), 1 << 16));
	char *map = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(f), 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, map, 1 << 16, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && !ftruncate(fileno(f), 0));
	loopback_write(&l, (uintptr_t)map, mr->lkey, (uintptr_t)l.memory, l.mr->rkey, 64);
	CHECK(wait_for(l.cq).status == IBV_WC_LOC_PROT_ERR);
	CHECK(!ibv_dereg_mr(mr) && !munmap(map, 1 << 16));
	loopback_close(&l);
}

// die ends the program by its own fault, which a shell must see as such.
static void die(void)
{
	on(SIGSEGV, SIG_DFL, 0);
	gone("after SIG_DFL");
	*nowhere = 1;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	program = pthread_self();
	alternate = malloc(SIGSTKSZ);
	stack_t stack = {.ss_sp = alternate, .ss_size = SIGSTKSZ};
	CHECK(!sigaltstack(&stack, NULL));
	on(SIGURG, count, SA_ONSTACK | SA_RESTART); // before the engine is loaded
	on(SIGUSR1, deep, 0);
	on(SIGSEGV, jump_simply, SA_NODEFER);
	device_open();
	if (argc > 1 && !strcmp(argv[1], "die"))
		die();
	in_thread(on_own_stack);
	on(SIGALRM, count, SA_ONSTACK | SA_RESTART);
	on(SIGPROF, count, SA_ONSTACK | SA_RESTART);
	CHECK(own_fault() == 1); // the previous handler
	gone("with a handler from before");

	struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
	CHECK(!setitimer(ITIMER_REAL, &often, NULL) && !setitimer(ITIMER_PROF, &often, NULL));
	struct sigaction a = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
	a.sa_sigaction = jump;
	CHECK(!sigaction(SIGSEGV, &a, &previous) && !sigaction(SIGBUS, &a, NULL));
	rest(5000);
	gone("with a handler from later");
	cut();
	CHECK(own_fault() == 1);
	on(SIGSEGV, deep, SA_NODEFER);
	rest(5000);
	gone("with a handler of much stack");
	in_thread(fault_on_own_stack);
	// One handler calls the previous one, and one is the previous one again.
	on(SIGSEGV, jump_simply, 0);
	rest(5000);
	gone("with a third handler");
	CHECK(!sigaction(SIGSEGV, NULL, &previous));
	on(SIGSEGV, restore_previous, 0);
	rest(5000);
	gone("with a handler that restores");
	CHECK(own_fault() == 2); // restore_previous, and then jump_simply
	rest(5000);
	gone("after it has restored");
	for (int i = 0; i < 100; i++) { // the same two again and again
		on(SIGSEGV, i % 2 ? jump_simply : restore_previous, 0);
		rest(1500);
		if (i % 10 == 9)
			gone("many times");
	}
	for (int i = 0; i < 100; i++)
		CHECK(!raise(SIGURG));
	double t = now();
	struct loopback l;
	loopback_open(&l);
	for (int n = 0; now() - t < 1 || n < 1000; n++) { // while the device works
		loopback_write(&l, (uintptr_t)l.memory, l.mr->lkey, (uintptr_t)l.memory + 4096, l.mr->rkey, 4096);
		CHECK(wait_for(l.cq).status == IBV_WC_SUCCESS);
	}
	CHECK(!setitimer(ITIMER_REAL, &never, NULL) && !setitimer(ITIMER_PROF, &never, NULL));
	printf("SIGALRM %d, SIGPROF %d, SIGURG %d, on the alternate stack %d, on another thread %d\n", alarmed, profiled, urgent, on_stack,
		elsewhere);
	CHECK(urgent == 100 && alarmed > 10 && profiled > 10 && !elsewhere && on_stack == alarmed + profiled + urgent);
	loopback_close(&l);
	return 0;
}
