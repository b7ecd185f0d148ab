// Loading of the engine. The first call that needs the engine loads it. Programs that never use
// RDMA, or that fork before they use it, have none of the engine's threads.
//
// Go's runtime does not survive fork, as the child does not have its threads. The first call of the
// child that needs an engine loads another (copy.c). The parent's remains in the child's memory,
// and is not used.
#include "front.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static int no_device(void) { return ENODEV; }

// The functions of a process without an engine: before front_load, also in a child after fork. One
// function without parameters can stand for each of them. All functions of the engine return an
// int, and the caller cleans up the arguments.
static struct sr_engine no_engine;

__attribute__((constructor)) static void fill_no_engine(void)
{
	int (**f)(void) = (int (**)(void))((char *)&no_engine + offsetof(struct sr_engine, open));
	int (**end)(void) = (int (**)(void))((char *)&no_engine + sizeof no_engine);
	while (f < end)
		*f++ = no_device;
}

const struct sr_engine *current_engine = &no_engine;
const struct sr_engine *front_engine(void) { return attached_engine(); }

unsigned int front_generation;

struct device devices[SR_MAX_DEVICES];
int device_count;

// Held while the engine is loaded, which may take as long as the start of a hub. A fork in another
// thread waits for it, so that no child has a half-loaded engine. A signal handler that has
// interrupted the loading thread does not wait when it forks: its child never has an engine.
static pthread_mutex_t load_mutex = PTHREAD_MUTEX_INITIALIZER;
static int loaded, failed, interrupted;
static __thread int loading __attribute__((tls_model("initial-exec")));

static void lock_before_fork(void)
{
	if (!loading)
		pthread_mutex_lock(&load_mutex);
}

static void unlock_in_parent(void)
{
	if (!loading)
		pthread_mutex_unlock(&load_mutex);
}

// Only one thread is attached at a time; see attach.
static pthread_mutex_t attach_mutex = PTHREAD_MUTEX_INITIALIZER;

static void drop_engine_in_child(void)
{
	interrupted |= loading;
	front_generation += loaded || loading;
	loaded = failed = loading = 0;
	current_engine = &no_engine;
	thread_state = 0;
	pthread_mutex_init(&load_mutex, NULL);
	pthread_mutex_init(&attach_mutex, NULL);
	unlock_pairs();
}

__attribute__((constructor)) static void add_fork_handlers(void)
{
	pthread_atfork(lock_before_fork, unlock_in_parent, drop_engine_in_child);
}

__thread int thread_state;
static pthread_key_t thread_key;

static void detach_thread(void *v)
{
	(void)v;
	if (thread_state == COUNTED) // not if only an engine before fork has counted it
		current_engine->thread(-1);
}

// This key is created before Go's key, so that its destructor runs first: Go's destructor detaches
// the thread.
__attribute__((constructor)) static void create_key(void) { pthread_key_create(&thread_key, detach_thread); }

// attach attaches the thread to Go and restores the thread's signal mask, because Go then unblocks
// some signals.
//
// Only one thread is attached at a time. Go makes a second thread wait for the first, with all
// signals blocked. setuid(2) of the program waits until each thread has taken a signal, and holds
// the lock with which threads are created. If Go must create a thread to go on, nothing would end.
static void attach(const struct sr_engine *e)
{
	sigset_t mask;
	thread_state = ATTACHED;
	int cancel = forbid_cancel();
	pthread_mutex_lock(&attach_mutex);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	e->thread(0);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	pthread_mutex_unlock(&attach_mutex);
	allow_cancel(cancel);
}

void attach_thread(void)
{
	if (!engine_missing())
		attach(current_engine);
}

void count_thread(void)
{
	if (engine->thread(1))
		return;
	pthread_setspecific(thread_key, &thread_state);
	thread_state = COUNTED;
}

static sem_t exiting, ended; // posted before and after the engine's shutdown

static void *shut_down(void *v)
{
	(void)v;
	while (sem_wait(&exiting))
		;
	engine->shutdown();
	sem_post(&ended);
	return NULL;
}

// How long an exiting process waits for the engine, in seconds.
#define SHUTDOWN_WAIT 12   // the engine waits 10 for the peers
#define INTERRUPTED_WAIT 2 // the engine may never answer

// inside_engine tells whether the calling thread is in a signal handler that has interrupted the
// engine. If the program has no libgcc_s.so.1, or the handler cannot be unwound, it returns 0.
static int inside_engine(void)
{
	void *frames[64];
	Dl_info engine_file, file;
	if (!dladdr((void *)current_engine->shutdown, &engine_file))
		return 0;
	for (int n = backtrace(frames, 64); n > 0;)
		if (dladdr(frames[--n], &file) && file.dli_fbase == engine_file.dli_fbase)
			return 1;
	return 0;
}

// close_connections ends the connections of a process that exits, because no kernel does so. A
// separate thread calls the engine. If a signal handler has called exit, the exiting thread may
// already be inside the engine. The engine may then wait forever for a lock of that thread, or for
// that thread to stop for the garbage collector. In this case the wait is shorter. The handler may
// also have interrupted malloc, so nothing here allocates memory.
static void close_connections(void)
{
	struct timespec until;
	if (engine_missing())
		return;
	int cancel = forbid_cancel(); // exit must not be interrupted halfway
	clock_gettime(CLOCK_MONOTONIC, &until); // the wall clock may be set meanwhile
	until.tv_sec += inside_engine() ? INTERRUPTED_WAIT : SHUTDOWN_WAIT;
	sem_post(&exiting);
	while (sem_clockwait(&ended, CLOCK_MONOTONIC, &until) && errno == EINTR)
		;
	allow_cancel(cancel);
}

// shut_down_at_exit starts the thread for close_connections, which can start none, and registers
// close_connections. A child after fork has inherited the registration.
static int shut_down_at_exit(void)
{
	static int registered;
	pthread_t t;
	sigset_t all, before;
	void *frame;
	backtrace(&frame, 1); // loads libgcc_s.so.1
	sem_init(&exiting, 0, 0);
	sem_init(&ended, 0, 0);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int err = pthread_create(&t, NULL, shut_down, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (err)
		return err;
	pthread_detach(t);
	if (!registered && atexit(close_connections))
		return ENOMEM;
	registered = 1;
	return 0;
}

static const struct sr_engine *load_engine(void)
{
	char path[4096];
	Dl_info self;
	if (!dladdr((void *)front_load, &self) || strlen(self.dli_fname) > sizeof path - 32)
		return NULL;
	strcpy(path, self.dli_fname);
	char *slash = strrchr(path, '/');
	strcpy(slash ? slash + 1 : path, "libsoftrnic.so");

	// Go's threads inherit this mask, so that they run none of the program's signal handlers.
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	void *lib = NULL;
	if (within_limits()) {
		lib = front_generation ? load_copy(path) : dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
		if (!lib && !front_generation)
			fprintf(stderr, "softrnic: %s\n", dlerror());
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!lib)
		return NULL;
	const struct sr_engine *(*get)(void) = (const struct sr_engine *(*)(void))dlsym(lib, "softrnic_engine");
	const struct sr_engine *e = get ? get() : NULL;
	if (!e || e->version != SR_VERSION || e->size != sizeof *e) {
		fprintf(stderr, "softrnic: %s is of another version than %s\n", path, self.dli_fname);
		return NULL;
	}
	return e;
}

// The handles of each generation have other upper bits. An object that a child has inherited thus
// never has the handle of one of its own.
#define HANDLE_BITS 24

static int open_devices(const struct sr_engine *e)
{
	static struct sr_device list[SR_MAX_DEVICES];
	int n = 0, err = e->open(list, &n, (uint32_t)front_generation << HANDLE_BITS);
	if (err)
		return err;
	for (int i = 0; i < n; i++) {
		struct device *d = &devices[i];
		d->sr = list[i];
		d->index = i;
		d->described = d->dm_used = 0;
		d->ibv.node_type = list[i].node_type;
		d->ibv.transport_type = list[i].transport;
		memcpy(d->ibv.name, list[i].name, sizeof d->ibv.name);
		snprintf(d->ibv.dev_name, sizeof d->ibv.dev_name, "uverbs%d", i);
		snprintf(d->ibv.dev_path, sizeof d->ibv.dev_path, "/sys/class/infiniband_verbs/uverbs%d", i);
		snprintf(d->ibv.ibdev_path, sizeof d->ibv.ibdev_path, "/sys/class/infiniband/%.63s", list[i].name);
	}
	device_count = n;
	return 0;
}

int front_load(void)
{
	int err = 0;
	if (loading) // the caller is a signal handler
		return EBUSY;
	int cancel = forbid_cancel();
	loading = 1;
	pthread_mutex_lock(&load_mutex);
	if (interrupted) {
		err = ENODEV;
	} else if (failed) {
		err = failed;
	} else if (!loaded) {
		const struct sr_engine *e = load_engine();
		if (!e) {
			err = failed = ENODEV;
		} else {
			loaded = 1; // even if open fails: Go's threads are running
			attach(e);
			if (!(err = failed = open_devices(e)) && !(err = failed = shut_down_at_exit()))
				current_engine = e;
		}
	}
	pthread_mutex_unlock(&load_mutex);
	loading = 0;
	allow_cancel(cancel);
	return err;
}
