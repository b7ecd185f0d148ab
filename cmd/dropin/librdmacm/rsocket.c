// Rsockets: creation, connection, destruction and addresses.
#include "rsock.h"

// The rsockets by number, in pages that are never freed. If two threads need a page at once, only
// one allocates it.
#define PAGE 1024
#define PAGES 1024
static struct rsock **pages[PAGES];

static struct rsock **slot(int fd, int make)
{
	if (fd < 0 || fd / PAGE >= PAGES)
		return NULL;
	struct rsock ***at = &pages[fd / PAGE];
	struct rsock **page = __atomic_load_n(at, __ATOMIC_ACQUIRE);
	if (!page && make) {
		struct rsock **new = calloc(PAGE, sizeof *new);
		if (!new)
			return NULL;
		if (__atomic_compare_exchange_n(at, &page, new, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			page = new;
		else
			free(new);
	}
	return page ? &page[fd % PAGE] : NULL;
}

struct rsock *find_rsock(int fd)
{
	struct rsock **at = slot(fd, 0);
	struct rsock *s = at ? __atomic_load_n(at, __ATOMIC_ACQUIRE) : NULL;
	if (!s)
		errno = EBADF;
	return s;
}

// The generation of the engine that counts the thread, and 1; 0: none.
static __thread unsigned int counted;
static pthread_key_t key;

static void detach_thread(void *v)
{
	(void)v;
	if (counted == front_generation + 1)
		engine->thread(-1);
}

// This key is created before Go's key, so that its destructor runs first: Go's destructor detaches
// the thread.
__attribute__((constructor)) static void create_key(void) { pthread_key_create(&key, detach_thread); }

void enter_engine(void)
{
	unsigned int by = front_generation + 1;
	if (counted == by || engine->thread(1))
		return;
	counted = by;
	pthread_setspecific(key, &counted);
}

// add registers an rsocket of the engine by its number fd. It returns fd, or -1 and sets errno.
static int add(struct rsock *s, int fd)
{
	struct rsock **at = slot(fd, 1);
	if (!at) {
		engine->rs_close(s->handle);
		free(s);
		return result(fd / PAGE >= PAGES ? EMFILE : ENOMEM);
	}
	publish(&s->life);
	__atomic_store_n(at, s, __ATOMIC_RELEASE);
	return fd;
}

PUBLIC int rsocket(int domain, int type, int protocol)
{
	int fd, err, nonblock = type & SOCK_NONBLOCK;
	type &= ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
	if ((domain != AF_INET && domain != AF_INET6) || (type != SOCK_STREAM && type != SOCK_DGRAM))
		return result(ENOTSUP);
	if (protocol && protocol != (type == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP))
		return result(ENOTSUP);
	if ((err = front_load()))
		return result(err);
	struct rsock *s = calloc(1, sizeof *s);
	if (!s)
		return -1;
	enter_engine();
	s->domain = domain;
	s->type = type;
	s->nonblock = nonblock;
	s->keepcnt = KEEPCNT;
	s->keepintvl = KEEPINTVL;
	if ((err = engine->rs_socket(domain, type == SOCK_DGRAM, &s->handle, &fd))) {
		free(s);
		return result(err);
	}
	return add(s, fd);
}

// The number is removed before the engine closes it, because another thread may get the same number
// after that.
PUBLIC int rclose(int fd)
{
	struct rsock **at = slot(fd, 0);
	struct rsock *s = at ? __atomic_exchange_n(at, NULL, __ATOMIC_ACQ_REL) : NULL;
	if (!s)
		return result(EBADF);
	int err = 0;
	if (inherited(&s->life))
		close_copy(&fd);
	else
		err = engine->rs_close(s->handle);
	s->handle = 0; // the engine may reuse the handle
	retire(s);
	return result(err);
}

int get_name(struct rsock *s, struct sr_cm_addr *to, const struct sockaddr *from, socklen_t len)
{
	if (!from || len < sizeof(sa_family_t))
		return EINVAL;
	if (from->sa_family != s->domain)
		return EAFNOSUPPORT;
	if (len < (s->domain == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)))
		return EINVAL;
	return get_addr(to, from);
}

void give_name(struct sr_cm_addr *from, struct sockaddr *to, socklen_t *len)
{
	sa_family_t family;
	memcpy(&family, from, sizeof family);
	socklen_t real = family == AF_INET ? sizeof(struct sockaddr_in) : family ? sizeof(struct sockaddr_in6) : 0;
	memcpy(to, from, *len < real ? *len : real);
	*len = real;
}

PUBLIC int rbind(int fd, const struct sockaddr *addr, socklen_t len)
{
	struct sr_cm_addr a;
	struct rsock *s = find_rsock(fd);
	if (!s)
		return -1;
	int err = get_name(s, &a, addr, len);
	return result(err ? err : engine->rs_bind(s->handle, &a));
}

PUBLIC int rlisten(int fd, int backlog)
{
	struct rsock *s = find_rsock(fd);
	return s ? result(engine->rs_listen(s->handle, backlog)) : -1;
}

PUBLIC int raccept(int fd, struct sockaddr *addr, socklen_t *len)
{
	struct rsock *s = find_rsock(fd);
	if (!s)
		return -1;
	struct rsock *c = calloc(1, sizeof *c);
	if (!c)
		return -1;
	enter_engine();
	int new, err;
	int64_t end = deadline(s->receive_timeout);
	pthread_cleanup_push(free, c);
	while ((err = engine->rs_accept(s->handle, &c->handle, &new)) == EAGAIN && !s->nonblock)
		if ((err = wait_rsock(s, POLLIN, end)))
			break;
	pthread_cleanup_pop(0);
	if (err) {
		free(c);
		return result(err);
	}
	struct sr_cm_addr a;
	if (addr && len && !engine->rs_name(c->handle, 1, &a))
		give_name(&a, addr, len);
	c->domain = s->domain;
	c->type = s->type;
	c->nodelay = s->nodelay;
	c->oobinline = s->oobinline;
	c->keepcnt = s->keepcnt;
	c->keepintvl = s->keepintvl;
	c->receive_timeout = s->receive_timeout;
	c->send_timeout = s->send_timeout;
	return add(c, new);
}

PUBLIC int rconnect(int fd, const struct sockaddr *addr, socklen_t len)
{
	struct sr_cm_addr a;
	struct rsock *s = find_rsock(fd);
	if (!s)
		return -1;
	int err = get_name(s, &a, addr, len);
	if (err)
		return result(err);
	enter_engine();
	err = engine->rs_connect(s->handle, &a);
	if (err != EINPROGRESS || s->nonblock)
		return result(err);
	if ((err = wait_rsock(s, POLLOUT, deadline(s->send_timeout))))
		return result(err == EAGAIN ? EINPROGRESS : err);
	int status = 0;
	err = engine->rs_get_option(s->handle, SR_RS_ERROR, &status);
	return result(err ? err : status);
}

PUBLIC int rshutdown(int fd, int how)
{
	struct rsock *s = find_rsock(fd);
	return s ? result(engine->rs_shutdown(s->handle, how)) : -1;
}

static int name(int fd, int peer, struct sockaddr *addr, socklen_t *len)
{
	struct sr_cm_addr a;
	struct rsock *s = find_rsock(fd);
	if (!s)
		return -1;
	int err = engine->rs_name(s->handle, peer, &a);
	if (!err)
		give_name(&a, addr, len);
	return result(err);
}

PUBLIC int rgetpeername(int fd, struct sockaddr *addr, socklen_t *len) { return name(fd, 1, addr, len); }
PUBLIC int rgetsockname(int fd, struct sockaddr *addr, socklen_t *len) { return name(fd, 0, addr, len); }
