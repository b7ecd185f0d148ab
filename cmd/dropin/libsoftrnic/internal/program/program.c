//go:build linux && cgo && (amd64 || arm64)

#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include "program.h"
#include "_cgo_export.h"

static void *start(void *i)
{
	programThread((int)(intptr_t)i);
	return NULL;
}

#define MAX_THREADS 64

int run_threads(int n)
{
	pthread_t threads[MAX_THREADS];
	int started = 0, err = n > MAX_THREADS;
	while (!err && started < n)
		if (!(err = pthread_create(&threads[started], NULL, start, (void *)(intptr_t)started)))
			started++;
	for (int i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	return err;
}

static volatile sig_atomic_t faults, expected;
static sigjmp_buf back;

static void on_fault(int sig)
{
	if (sig != SIGSEGV || !expected)
		_exit(77); // a fault of the engine
	faults++;
	siglongjmp(back, 1);
}

static void on_fault_with_info(int sig, siginfo_t *info, void *context)
{
	(void)context;
	if (info->si_signo != sig)
		_exit(78);
	on_fault(sig);
}

void catch_faults(int kind, int mask)
{
	struct sigaction a;
	memset(&a, 0, sizeof a);
	a.sa_handler = on_fault;
	if (kind == 1)
		a.sa_flags = SA_ONSTACK;
	if (kind == 2) {
		a.sa_flags = SA_SIGINFO;
		a.sa_sigaction = on_fault_with_info;
	}
	sigaddset(&a.sa_mask, SIGRTMIN + mask);
	sigaction(SIGSEGV, &a, NULL);
}

// The fault is in the C library, as the test binary has both the engine and this file.
static size_t (*volatile length)(const char *) = strlen;

int read_faults(void *p)
{
	int before = faults;
	expected = 1;
	if (!sigsetjmp(back, 1))
		length(p);
	expected = 0;
	return faults - before;
}

int caught(void) { return faults; }
