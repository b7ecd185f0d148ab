// Options of rsockets: those of rsocket(7), and others that programs use with them.
#include "rsock.h"
#include <stdarg.h>

// The options that the engine has, each an integer.
static const struct {
	int level, name, ours, get_only;
} options[] = {
	{SOL_SOCKET, SO_SNDBUF, SR_RS_SNDBUF, 0},
	{SOL_SOCKET, SO_RCVBUF, SR_RS_RCVBUF, 0},
	{SOL_SOCKET, SO_REUSEADDR, SR_RS_REUSEADDR, 0},
	{SOL_SOCKET, SO_KEEPALIVE, SR_RS_KEEPALIVE, 0},
	{SOL_SOCKET, SO_ERROR, SR_RS_ERROR, 1},
	{SOL_SOCKET, SO_ACCEPTCONN, SR_RS_ACCEPTCONN, 1},
	{IPPROTO_TCP, TCP_KEEPIDLE, SR_RS_KEEPIDLE, 0},
	{IPPROTO_TCP, TCP_MAXSEG, SR_RS_MAXSEG, 1},
	{IPPROTO_IPV6, IPV6_V6ONLY, SR_RS_V6ONLY, 0},
	{SOL_RDMA, RDMA_SQSIZE, SR_RS_SQSIZE, 0},
	{SOL_RDMA, RDMA_RQSIZE, SR_RS_RQSIZE, 0},
	{SOL_RDMA, RDMA_INLINE, SR_RS_INLINE, 0},
	{SOL_RDMA, RDMA_IOMAPSIZE, SR_RS_IOMAPSIZE, 0},
};

static int find_option(int level, int name)
{
	for (size_t i = 0; i < sizeof options / sizeof *options; i++)
		if (options[i].level == level && options[i].name == name)
			return i;
	return -1;
}

// local_option returns the place of an option that is kept here and not in the engine, or NULL. Its
// values are 1 to *max. If *max is 0, it is a flag.
static int *local_option(struct rsock *s, int level, int name, int *max)
{
	*max = 0;
	if (level == IPPROTO_TCP && name == TCP_NODELAY)
		return &s->nodelay;
	if (level == SOL_SOCKET && name == SO_OOBINLINE)
		return &s->oobinline;
	if (level == IPPROTO_TCP && name == TCP_KEEPCNT) {
		*max = 127;
		return &s->keepcnt;
	}
	if (level == IPPROTO_TCP && name == TCP_KEEPINTVL) {
		*max = 32767;
		return &s->keepintvl;
	}
	return NULL;
}

// timeout_of returns the place of an option's timeout, or NULL.
static int64_t *timeout_of(struct rsock *s, int level, int name)
{
	if (level != SOL_SOCKET)
		return NULL;
	return name == SO_RCVTIMEO ? &s->receive_timeout : name == SO_SNDTIMEO ? &s->send_timeout : NULL;
}

// set_timeout sets a timeout. As in Linux, 0 means no timeout, and a negative time means the
// shortest.
static int set_timeout(int64_t *at, const void *value, socklen_t len)
{
	struct timeval t;
	if (len < sizeof t)
		return EINVAL;
	memcpy(&t, value, sizeof t);
	if (t.tv_usec < 0 || t.tv_usec >= 1000000)
		return EDOM;
	if (t.tv_sec < 0)
		*at = 1;
	else if (t.tv_sec >= INT32_MAX)
		*at = 0;
	else
		*at = t.tv_sec * 1000000000LL + t.tv_usec * 1000LL;
	return 0;
}

PUBLIC int rsetsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	struct rsock *s = find_rsock(fd);
	struct linger linger;
	int v, max, i = find_option(level, name), *at;
	int64_t *timeout;
	if (!s)
		return -1;
	if ((timeout = timeout_of(s, level, name)))
		return result(set_timeout(timeout, value, len));
	if (level == SOL_SOCKET && name == SO_LINGER) {
		if (len < sizeof linger)
			return result(EINVAL);
		memcpy(&linger, value, sizeof linger);
		return result(engine->rs_set_option(s->handle, SR_RS_LINGER, linger.l_onoff ? linger.l_linger : -1));
	}
	at = local_option(s, level, name, &max);
	if (!at && (i < 0 || options[i].get_only))
		return result(ENOPROTOOPT);
	if (len < sizeof v)
		return result(EINVAL);
	memcpy(&v, value, sizeof v);
	if (at && max && (v < 1 || v > max))
		return result(EINVAL);
	if (at) {
		*at = max ? v : v != 0;
		return 0;
	}
	return result(engine->rs_set_option(s->handle, options[i].ours, v));
}

static int copy_out(const void *from, socklen_t real, void *to, socklen_t *len)
{
	if (*len > real)
		*len = real;
	memcpy(to, from, *len);
	return 0;
}

// info returns the known fields of TCP_INFO. The others are 0: there is no congestion window, and
// round trips are not measured.
static int info(struct rsock *s, struct tcp_info *i)
{
	int state, again, segment, err;
	memset(i, 0, sizeof *i);
	if (s->type != SOCK_STREAM)
		return ENOPROTOOPT;
	if ((err = engine->rs_get_option(s->handle, SR_RS_STATE, &state)) ||
	    (err = engine->rs_get_option(s->handle, SR_RS_RETRANSMITTED, &again)) ||
	    (err = engine->rs_get_option(s->handle, SR_RS_MAXSEG, &segment)))
		return err;
	i->tcpi_state = state;
	i->tcpi_total_retrans = again;
	i->tcpi_snd_mss = i->tcpi_rcv_mss = i->tcpi_advmss = i->tcpi_pmtu = segment;
	return 0;
}

PUBLIC int rgetsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	struct rsock *s = find_rsock(fd);
	int v = 0, err, max, i = find_option(level, name), *at;
	int64_t *timeout;
	if (!s)
		return -1;
	if ((timeout = timeout_of(s, level, name))) {
		struct timeval t = {.tv_sec = *timeout / 1000000000, .tv_usec = *timeout / 1000 % 1000000};
		return copy_out(&t, sizeof t, value, len);
	}
	if (level == SOL_SOCKET && name == SO_LINGER) {
		if ((err = engine->rs_get_option(s->handle, SR_RS_LINGER, &v)))
			return result(err);
		struct linger linger = {.l_onoff = v >= 0, .l_linger = v >= 0 ? v : 0};
		return copy_out(&linger, sizeof linger, value, len);
	}
	if (level == IPPROTO_TCP && name == TCP_INFO) {
		struct tcp_info i;
		err = info(s, &i);
		return err ? result(err) : copy_out(&i, sizeof i, value, len);
	}
	if ((at = local_option(s, level, name, &max)))
		return copy_out(at, sizeof *at, value, len);
	if (level == SOL_SOCKET && (name == SO_TYPE || name == SO_DOMAIN || name == SO_PROTOCOL)) {
		v = name == SO_TYPE ? s->type : name == SO_DOMAIN ? s->domain : s->type == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP;
		return copy_out(&v, sizeof v, value, len);
	}
	if (i < 0)
		return result(ENOPROTOOPT);
	if ((err = engine->rs_get_option(s->handle, options[i].ours, &v)))
		return result(err);
	return copy_out(&v, sizeof v, value, len);
}

PUBLIC int rfcntl(int fd, int cmd, ...)
{
	struct rsock *s = find_rsock(fd);
	va_list list;
	if (!s)
		return -1;
	va_start(list, cmd);
	int arg = cmd == F_SETFL || cmd == F_SETFD ? va_arg(list, int) : 0;
	va_end(list);
	switch (cmd) {
	case F_GETFL:
		return O_RDWR | (s->nonblock ? O_NONBLOCK : 0);
	case F_SETFL:
		s->nonblock = arg & O_NONBLOCK;
		return 0;
	case F_GETFD:
	case F_SETFD:
		return fcntl(fd, cmd, arg);
	}
	return result(ENOTSUP);
}
