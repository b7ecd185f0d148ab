//go:build linux && cgo && (amd64 || arm64)

// Go's threads must not run the program's signal handlers. Their stacks are too small for a handler
// that was installed without SA_ONSTACK. They start with all signals blocked, because all signals
// are blocked when the front loads the engine. But Go unblocks some signals in each thread. Of
// these, the program may use SIGCHLD, SIGPROF, SIGSTKFLT and the first real-time signal. Therefore
// each thread that Go creates queues a blocked signal to itself. When Go unblocks the signal, its
// handler blocks the others again.
//
// The signal is SIGSETXID, with which the C library changes the user of all threads. The C library
// installs a handler for it with the second thread, and its sigaction refuses to change the
// handler. Any other signal could lose its handler while it is pending, and then end the process.
// Signals that are not sent here are passed on to the C library's handler.
//
// The engine is linked with --wrap=pthread_create. Go creates its threads with pthread_create.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>
#include <sys/syscall.h>

#define SIGSETXID 33

// BIT is the bit of a signal in the kernel's sets of 64 signals.
#define BIT(sig) ((uint64_t)1 << ((sig) - 1))

// The signals that a thread of Go accepts: faults, and signals of the C library.
#define ACCEPTED (BIT(SIGILL) | BIT(SIGTRAP) | BIT(SIGBUS) | BIT(SIGFPE) | BIT(SIGSEGV) | BIT(32) | BIT(SIGSETXID))

// The kernel's struct sigaction.
struct action {
	void (*handler)(int, siginfo_t *, void *);
	unsigned long flags;
	void (*restorer)(void);
	uint64_t mask;
};

// The C library's action. Its handler is NULL until handle_setxid is installed.
static struct action libc_action;
static pthread_mutex_t install_mutex = PTHREAD_MUTEX_INITIALIZER;

static void handle_setxid(int sig, siginfo_t *info, void *context)
{
	if (info->si_code == SI_QUEUE && info->si_pid == getpid() && info->si_value.sival_ptr == (void *)&libc_action)
		// The kernel's set has only these bytes.
		memcpy(&((ucontext_t *)context)->uc_sigmask, &(uint64_t){~ACCEPTED}, sizeof(uint64_t));
	else
		libc_action.handler(sig, info, context);
}

// install installs handle_setxid in front of the C library's handler. It returns whether it is
// installed.
static int install(void)
{
	pthread_mutex_lock(&install_mutex);
	if (!libc_action.handler) {
		struct action a;
		if (!syscall(SYS_rt_sigaction, SIGSETXID, NULL, &a, sizeof a.mask) && (void *)a.handler != SIG_DFL &&
		    (void *)a.handler != SIG_IGN && a.flags & SA_SIGINFO) {
			libc_action = a;
			a.handler = handle_setxid;
			a.flags |= SA_ONSTACK;
			// The handler is not interrupted either: the kernel delivers a thread's signal to itself first.
			a.mask = ~ACCEPTED;
			if (syscall(SYS_rt_sigaction, SIGSETXID, &a, NULL, sizeof a.mask))
				libc_action.handler = NULL;
		}
	}
	int there = libc_action.handler != NULL;
	pthread_mutex_unlock(&install_mutex);
	return there;
}

struct start {
	void *(*f)(void *);
	void *arg;
};

static void *start_thread(void *v)
{
	struct start s = *(struct start *)v;
	free(v);
	if (install()) {
		uint64_t all = ~(uint64_t)0;
		siginfo_t info;
		memset(&info, 0, sizeof info);
		info.si_code = SI_QUEUE;
		info.si_pid = getpid();
		info.si_value.sival_ptr = &libc_action;
		syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof all);
		syscall(SYS_rt_tgsigqueueinfo, info.si_pid, syscall(SYS_gettid), SIGSETXID, &info);
	}
	return s.f(s.arg);
}

// NULL if the engine is linked without --wrap, as by go vet and go build ./...
extern int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) __attribute__((weak));
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*f)(void *), void *arg)
{
	struct start *s = malloc(sizeof *s);
	if (!s)
		return EAGAIN;
	s->f = f;
	s->arg = arg;
	int err = __real_pthread_create(t, attr, start_thread, s);
	if (err)
		free(s);
	return err;
}
