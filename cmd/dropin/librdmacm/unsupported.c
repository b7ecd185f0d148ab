// Functions of newer releases of librdmacm, which the installed headers may or may not declare.
// They exist for programs that refer to them, and they fail.
#include "cm.h"
#include <sys/epoll.h>

#define UNSUPPORTED(type, name, parameters) PUBLIC type name parameters

#pragma GCC diagnostic ignored "-Wunused-parameter"

// RDMACM_1.5
UNSUPPORTED(int, repoll_create, (int flags))
{ return result(ENOSYS); }
UNSUPPORTED(int, repoll_ctl, (int ep, int op, int fd, struct epoll_event *event))
{ return result(ENOSYS); }
UNSUPPORTED(int, repoll_wait, (int ep, struct epoll_event *events, int max, int timeout))
{ return result(ENOSYS); }
