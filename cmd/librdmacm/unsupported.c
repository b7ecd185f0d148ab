// Functions that are there for programs that name them, and fail: rsockets, and what librdmacm has of releases newer than the
// headers that this library is built with.
#include "cm.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <rdma/rsocket.h>

#define NONE(type, name, parameters) PUBLIC type name parameters

#pragma GCC diagnostic ignored "-Wunused-parameter"

NONE(int, rsocket, (int domain, int type, int protocol)) { return result(ENOSYS); }
NONE(int, rbind, (int s, const struct sockaddr *addr, socklen_t len)) { return result(ENOSYS); }
NONE(int, rlisten, (int s, int backlog)) { return result(ENOSYS); }
NONE(int, raccept, (int s, struct sockaddr *addr, socklen_t *len)) { return result(ENOSYS); }
NONE(int, rconnect, (int s, const struct sockaddr *addr, socklen_t len)) { return result(ENOSYS); }
NONE(int, rshutdown, (int s, int how)) { return result(ENOSYS); }
NONE(int, rclose, (int s)) { return result(ENOSYS); }
NONE(ssize_t, rrecv, (int s, void *buf, size_t n, int flags)) { return result(ENOSYS); }
NONE(ssize_t, rrecvfrom, (int s, void *buf, size_t n, int flags, struct sockaddr *from, socklen_t *len)) { return result(ENOSYS); }
NONE(ssize_t, rrecvmsg, (int s, struct msghdr *m, int flags)) { return result(ENOSYS); }
NONE(ssize_t, rsend, (int s, const void *buf, size_t n, int flags)) { return result(ENOSYS); }
NONE(ssize_t, rsendto, (int s, const void *buf, size_t n, int flags, const struct sockaddr *to, socklen_t len)) { return result(ENOSYS); }
NONE(ssize_t, rsendmsg, (int s, const struct msghdr *m, int flags)) { return result(ENOSYS); }
NONE(ssize_t, rread, (int s, void *buf, size_t n)) { return result(ENOSYS); }
NONE(ssize_t, rreadv, (int s, const struct iovec *v, int n)) { return result(ENOSYS); }
NONE(ssize_t, rwrite, (int s, const void *buf, size_t n)) { return result(ENOSYS); }
NONE(ssize_t, rwritev, (int s, const struct iovec *v, int n)) { return result(ENOSYS); }
NONE(int, rpoll, (struct pollfd *fds, nfds_t n, int timeout)) { return result(ENOSYS); }
NONE(int, rselect, (int n, fd_set *r, fd_set *w, fd_set *x, struct timeval *timeout)) { return result(ENOSYS); }
NONE(int, rgetpeername, (int s, struct sockaddr *addr, socklen_t *len)) { return result(ENOSYS); }
NONE(int, rgetsockname, (int s, struct sockaddr *addr, socklen_t *len)) { return result(ENOSYS); }
NONE(int, rsetsockopt, (int s, int level, int option, const void *value, socklen_t len)) { return result(ENOSYS); }
NONE(int, rgetsockopt, (int s, int level, int option, void *value, socklen_t *len)) { return result(ENOSYS); }
NONE(int, rfcntl, (int s, int cmd, ...)) { return result(ENOSYS); }
NONE(off_t, riomap, (int s, void *buf, size_t len, int prot, int flags, off_t offset)) { return result(ENOSYS); }
NONE(int, riounmap, (int s, void *buf, size_t len)) { return result(ENOSYS); }
NONE(size_t, riowrite, (int s, const void *buf, size_t n, off_t offset, int flags)) { return result(ENOSYS); }

// RDMACM_1.4 and RDMACM_1.5
NONE(int, rdma_resolve_addrinfo, (struct rdma_cm_id *id, const char *node, const char *service, const struct rdma_addrinfo *hints)) { return result(EOPNOTSUPP); }
NONE(int, rdma_query_addrinfo, (struct rdma_cm_id *id, struct rdma_addrinfo **info)) { return result(EOPNOTSUPP); }
NONE(int, rdma_write_cm_event, (struct rdma_cm_id *id, int event, int status, uint64_t arg)) { return result(EOPNOTSUPP); }
NONE(int, repoll_create, (int flags)) { return result(ENOSYS); }
NONE(int, repoll_ctl, (int ep, int op, int fd, struct epoll_event *event)) { return result(ENOSYS); }
NONE(int, repoll_wait, (int ep, struct epoll_event *events, int max, int timeout)) { return result(ENOSYS); }
