// What the files of the rsocket functions share.
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

// An rsocket. Its number is that of a descriptor which the engine has for it.
struct rsock {
	uint32_t handle;
	int domain;
	int type;      // SOCK_STREAM or SOCK_DGRAM
	int nonblock;  // O_NONBLOCK
	int nodelay;   // TCP_NODELAY, which is always so: nothing is held back
	int oobinline; // SO_OOBINLINE: there is no data out of band

	// TCP_KEEPCNT and TCP_KEEPINTVL, in s: kept, and without effect. The QP repeats the one probe, so often and for so long as its
	// retry_cnt and timeout say.
	int keepcnt, keepintvl;

	int64_t receive_timeout, send_timeout; // SO_RCVTIMEO and SO_SNDTIMEO in ns; 0: none
};

// The defaults of Linux.
#define KEEPCNT 9
#define KEEPINTVL 75

// find_rsock returns an rsocket by its number; NULL if that is of something else.
struct rsock *find_rsock(int fd);

// get_name copies a name for the engine. It returns 0 or an errno.
int get_name(struct rsock *s, struct sr_cm_addr *to, const struct sockaddr *from, socklen_t len);
// give_name copies a name for the program, as much as it has room for.
void give_name(struct sr_cm_addr *from, struct sockaddr *to, socklen_t *len);

// entering_rsock is called before a call of the engine that may be one of many: the engine knows how many threads make them.
void entering_rsock(void);

// end_of is when a call of now ends for which a timeout in ns holds; -1 is never.
int64_t end_of(int64_t timeout);

// wait_rsock waits until an rsocket is ready for events, POLLIN or POLLOUT, or has failed. It returns 0 or an errno, EAGAIN at the end
// that end_of has given.
int wait_rsock(struct rsock *s, int events, int64_t end);

#endif
