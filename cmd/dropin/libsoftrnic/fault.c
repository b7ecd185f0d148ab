//go:build linux && cgo && (amd64 || arm64)

// Handlers of SIGSEGV, SIGBUS and SIGURG. Go handles a fault in Go code and returns it as an error
// (verbs.Guard). The program handles every other fault, and signals that are sent to the process.
//
// Go installs one handler and saves the previous one. Programs and libraries such as UCX or
// Python's faulthandler may install handlers later, which replace Go's. fault_check then installs
// one of the handlers below in front of such a handler. There are several, each with its own next
// handler. The reason is that a program may save the handler that it finds, and later call it or
// install it again. A handler of this file that is called in this way passes the fault on to its
// own next handler.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>
#include "fault.h"
#include "softrnic.h"

#define SIGNALS 2
#define LEVELS 8

static const int signals[SIGNALS] = {SIGSEGV, SIGBUS};
static struct sigaction before[SIGNALS]; // when the library was loaded
static struct sigaction go[SIGNALS];     // Go's own
static struct sigaction all_before[NSIG];
static struct sigaction next[SIGNALS][LEVELS];
static uintptr_t text, text_end; // the engine's code

// save_actions runs before Go installs its handlers.
__attribute__((constructor(101))) static void save_actions(void)
{
	for (int i = 0; i < SIGNALS; i++)
		sigaction(signals[i], NULL, &before[i]);
	for (int sig = 1; sig < NSIG; sig++)
		sigaction(sig, NULL, &all_before[sig]); // fails for two signals of the C library
}

static int in_engine(void *context)
{
	mcontext_t *m = &((ucontext_t *)context)->uc_mcontext;
#ifdef __x86_64__
	uintptr_t pc = m->gregs[REG_RIP];
#else
	uintptr_t pc = m->pc;
#endif
	return pc >= text && pc < text_end;
}

// pass_on handles a signal as the kernel does if its action is a.
static void pass_on(struct sigaction *a, int sig, siginfo_t *info, void *context)
{
	struct sigaction now = *a;
	if (now.sa_flags & SA_RESETHAND) {
		a->sa_handler = SIG_DFL;
		a->sa_flags = 0;
	}
	if (now.sa_flags & SA_SIGINFO) {
		now.sa_sigaction(sig, info, context);
	} else if (now.sa_handler == SIG_DFL || (now.sa_handler == SIG_IGN && info->si_code > 0)) {
		struct sigaction end = {.sa_handler = SIG_DFL};
		sigaction(sig, &end, NULL);
		if (info->si_code <= 0) // when this handler returns, a fault occurs again and ends the process
			raise(sig);
	} else if (now.sa_handler != SIG_IGN) {
		now.sa_handler(sig);
	}
}

// occurs_again returns whether the instruction will fault again.
static int occurs_again(int sig, siginfo_t *info)
{
	return info->si_code > 0 && !(sig == SIGBUS && info->si_code == BUS_MCEERR_AO);
}

// wants_own_stack returns whether a handler expects the stack of the interrupted thread. This
// handler runs on Go's alternate stack, which has 32 KiB, with the program's memory below it.
static int wants_own_stack(struct sigaction *a)
{
	return !(a->sa_flags & SA_ONSTACK) && a->sa_handler != SIG_DFL && a->sa_handler != SIG_IGN;
}

static void handle(int level, int sig, siginfo_t *info, void *context)
{
	int i = sig == SIGBUS;
	struct sigaction *a = &next[i][level];
	if (info->si_code > 0 && in_engine(context))
		go[i].sa_sigaction(sig, info, context);
	else if (occurs_again(sig, info) && wants_own_stack(a))
		// The kernel calls it at the next fault. fault_check installs this handler again.
		sigaction(sig, a, NULL);
	else
		pass_on(a, sig, info, context);
}

#define HANDLER(level) \
	static void handler_##level(int sig, siginfo_t *info, void *context) { handle(level, sig, info, context); }
HANDLER(0)
HANDLER(1)
HANDLER(2)
HANDLER(3)
HANDLER(4)
HANDLER(5)
HANDLER(6)
HANDLER(7)

static void (*const handlers[LEVELS])(int, siginfo_t *, void *) = {
	handler_0, handler_1, handler_2, handler_3, handler_4, handler_5, handler_6, handler_7,
};

static int used[SIGNALS]; // levels

static int is_own_handler(int i, struct sigaction *a)
{
	for (int level = 0; level < used[i]; level++)
		if (a->sa_flags & SA_SIGINFO && a->sa_sigaction == handlers[level])
			return 1;
	return 0;
}

static int same(struct sigaction *a, struct sigaction *b)
{
	return a->sa_handler == b->sa_handler && a->sa_flags == b->sa_flags &&
	       !memcmp(&a->sa_mask, &b->sa_mask, sizeof(uint64_t)); // the kernel's 64 signals
}

// install_before installs a handler that passes signals that Go does not handle on to a.
static int install_before(int i, struct sigaction *a)
{
	int level = 0;
	while (level < used[i] && !same(a, &next[i][level]))
		level++;
	if (level == LEVELS)
		return ENOSPC;
	if (level == used[i]) {
		next[i][level] = *a;
		used[i]++;
	}
	// Go's handler needs an alternate stack, because Go's stacks are small.
	struct sigaction mine = *a;
	mine.sa_flags = (a->sa_flags & (SA_NODEFER | SA_RESTART)) | SA_SIGINFO | SA_ONSTACK;
	mine.sa_sigaction = handlers[level];
	return sigaction(signals[i], &mine, NULL) ? errno : 0;
}

static int find_text(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size; (void)arg;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t begin = info->dlpi_addr + p->p_vaddr;
		if (p->p_type == PT_LOAD && p->p_flags & PF_X && (uintptr_t)find_text >= begin && (uintptr_t)find_text < begin + p->p_memsz) {
			text = begin;
			text_end = begin + p->p_memsz;
			return 1;
		}
	}
	return 0;
}

void fault_restore_stacks(void)
{
	for (int sig = 1; sig < NSIG; sig++) {
		struct sigaction now, *old = &all_before[sig];
		if (!(old->sa_flags & SA_ONSTACK) && !sigaction(sig, NULL, &now) && now.sa_handler == old->sa_handler &&
		    now.sa_flags == (old->sa_flags | SA_ONSTACK))
			sigaction(sig, old, NULL);
	}
}

void fault_init(void)
{
	dl_iterate_phdr(find_text, NULL);
	for (int i = 0; i < SIGNALS; i++) {
		sigaction(signals[i], NULL, &go[i]);
		if (go[i].sa_flags & SA_SIGINFO)
			install_before(i, &before[i]);
	}
	// Go preempts its threads with SIGURG. The engine is built with asyncpreemptoff, which leaves
	// SIGURG to the program.
	sigaction(SIGURG, &all_before[SIGURG], NULL);
}

int fault_check(void)
{
	int err = 0;
	for (int i = 0; i < SIGNALS; i++) {
		struct sigaction now;
		if (go[i].sa_flags & SA_SIGINFO && !sigaction(signals[i], NULL, &now) && !is_own_handler(i, &now)) {
			int e = install_before(i, &now);
			err = err ? err : e;
		}
	}
	return err;
}
