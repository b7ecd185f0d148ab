// What libibverbs.so.1 and librdmacm.so.1 do with the memory of destroyed objects.
#ifndef RETIRE_H
#define RETIRE_H

#include <pthread.h>
#include <stdlib.h>

#define RETIRED 256

// retire frees the memory of a destroyed object, but only when as many others have been retired. Some programs have threads
// that call a function once more with an object that another thread has just destroyed: rping's that takes events may be
// overtaken, between two of them, by the one that destroys the channel. With a kernel's device they get an errno. The caller
// has therefore set the object's handle to 0, and its descriptors to -1, as soon as the engine has forgotten it. Such a program
// remains wrong: who is later than RETIRED objects finds memory that is freed.
static inline void retire(void *object)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static void *retired[RETIRED];
	static unsigned int next;
	pthread_mutex_lock(&mutex);
	void *oldest = retired[next];
	retired[next] = object;
	next = (next + 1) % RETIRED;
	pthread_mutex_unlock(&mutex);
	free(oldest);
}

#endif
