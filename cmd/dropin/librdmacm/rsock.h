// Declarations that the files of the rsocket functions share.
#ifndef RSOCK_H
#define RSOCK_H

#include "cm.h"
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <rdma/rsocket.h>

// An rsocket. Its number is that of a descriptor which the engine opens for it.
struct rsock {
	uint32_t handle;
	struct life life;
	int domain;
	int type;      // SOCK_STREAM or SOCK_DGRAM
	int nonblock;  // O_NONBLOCK
	int nodelay;   // TCP_NODELAY; without effect, as data is never delayed
	int oobinline; // SO_OOBINLINE; without effect, as there is no out-of-band data

	// TCP_KEEPCNT and TCP_KEEPINTVL, in s. They have no effect: the QP sends a single probe, and
	// retransmits it according to its retry_cnt and timeout.
	int keepcnt, keepintvl;

	int64_t receive_timeout, send_timeout; // SO_RCVTIMEO and SO_SNDTIMEO in ns; 0: none
};

// Linux's defaults.
#define KEEPCNT 9
#define KEEPINTVL 75

// find_rsock returns an rsocket by its number, or NULL with errno set if there is none.
struct rsock *find_rsock(int fd);

// get_name copies an address for the engine. It returns 0 or an errno.
int get_name(struct rsock *s, struct sr_cm_addr *to, const struct sockaddr *from, socklen_t len);
// give_name copies an address for the program, truncated to the program's buffer.
void give_name(struct sr_cm_addr *from, struct sockaddr *to, socklen_t *len);

// enter_engine is called before each call of the engine that programs make often. The engine counts
// the threads that make such calls.
void enter_engine(void);

// deadline returns the time at which a call that starts now times out. timeout is in ns. -1 means
// never.
int64_t deadline(int64_t timeout);

// wait_rsock waits until an rsocket is ready for events (POLLIN or POLLOUT), or has failed. It
// returns 0 or an errno. The errno is EAGAIN when end, the result of deadline, has passed.
int wait_rsock(struct rsock *s, int events, int64_t end);

#endif
