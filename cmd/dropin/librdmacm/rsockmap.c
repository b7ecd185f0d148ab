// Memory to which the peer of an rsocket may write.
#include "rsock.h"
#include <sys/mman.h>

PUBLIC off_t riomap(int fd, void *buf, size_t len, int prot, int flags, off_t offset)
{
	struct rsock *s = find_rsock(fd);
	int64_t at;
	if (!s)
		return -1;
	// PROT_NONE maps memory that riowrite would read without a copy. This is not supported.
	if (prot == PROT_NONE)
		return result(EOPNOTSUPP);
	if (prot != PROT_WRITE || flags)
		return result(EINVAL);
	int err = engine->rs_map(s->handle, buf, len, offset, &at);
	return err ? result(err) : at;
}

PUBLIC int riounmap(int fd, void *buf, size_t len)
{
	struct rsock *s = find_rsock(fd);
	return s ? result(engine->rs_unmap(s->handle, buf, len)) : -1;
}

PUBLIC size_t riowrite(int fd, const void *buf, size_t n, off_t offset, int flags)
{
	struct rsock *s = find_rsock(fd);
	size_t total = 0;
	if (!s)
		return -1;
	if (flags & ~(MSG_DONTWAIT | MSG_WAITALL | MSG_NOSIGNAL))
		return result(EOPNOTSUPP);
	enter_engine();
	int64_t end = deadline(s->send_timeout);
	while (total < n) {
		size_t put;
		int err = engine->rs_write_at(s->handle, (char *)buf + total, n - total, offset + total, &put);
		if (err == EAGAIN && !s->nonblock && !(flags & MSG_DONTWAIT))
			err = wait_rsock(s, POLLOUT, end);
		if (err)
			return total ? total : (size_t)result(err);
		total += put;
	}
	return total;
}
