// Buffers that the library allocates, and ibv_reg_mr_ex. The structures are declared here, because
// the installed headers may be of an older release. The functions have names of their own, because
// the installed headers may also be of a newer one, and declare them with its structures.
#include "front.h"
#include <unistd.h>

// struct buffer is struct ibv_buf. Programs do not see its fields.
struct buffer {
	char *addr;
	size_t size;
	struct ibv_pd *pd;
};

// struct mr_init_attr is struct ibv_mr_init_attr. comp_mask says which of its fields are set.
struct mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	struct buffer *buf;
};

enum { HAS_IOVA = 1, HAS_ADDR = 2, HAS_FD = 4, HAS_FD_OFFSET = 8, HAS_DMAH = 16, HAS_BUF = 32, HAS_KNOWN = 63 };

PUBLIC void *alloc_buf(struct ibv_pd *pd, size_t size, struct buffer **buf) EXPORTED(ibv_alloc_buf);
PUBLIC void free_buf(struct buffer *buf) EXPORTED(ibv_free_buf);
PUBLIC int export_buf_dmabuf_fd(struct buffer *buf) EXPORTED(ibv_export_buf_dmabuf_fd);
PUBLIC struct ibv_mr *reg_mr_ex(struct ibv_pd *pd, struct mr_init_attr *attr) EXPORTED(ibv_reg_mr_ex);
PUBLIC struct ibv_mr *reg_buf_mr(struct ibv_pd *pd, struct buffer *buf, void *addr, size_t length, int access) EXPORTED(ibv_reg_buf_mr);

void *alloc_buf(struct ibv_pd *pd, size_t size, struct buffer **buf)
{
	struct buffer *b = calloc(1, sizeof *b);
	if (!b)
		return NULL;
	void *addr;
	int err = posix_memalign(&addr, sysconf(_SC_PAGESIZE), size);
	if (err) {
		free(b);
		return fail_null(err);
	}
	*b = (struct buffer){addr, size, pd};
	*buf = b;
	return addr;
}

void free_buf(struct buffer *buf)
{
	free(buf->addr);
	free(buf);
}

int export_buf_dmabuf_fd(struct buffer *buf)
{
	(void)buf;
	return minus_one(ENODATA); // it is ordinary memory
}

// within tells whether a region is in a buffer and has the PD with which the buffer was allocated.
static int within(const struct buffer *buf, const struct ibv_pd *pd, const struct mr_init_attr *attr)
{
	uintptr_t offset = (uintptr_t)attr->addr - (uintptr_t)buf->addr;
	return buf->pd == pd && !(attr->comp_mask & (HAS_FD | HAS_FD_OFFSET)) && (uintptr_t)attr->addr >= (uintptr_t)buf->addr &&
	       offset <= buf->size && attr->length <= buf->size - offset;
}

struct ibv_mr *reg_mr_ex(struct ibv_pd *pd, struct mr_init_attr *attr)
{
	uint64_t has = attr->comp_mask;
	int is_fd = (has & HAS_FD) != 0;
	if (has & HAS_BUF && !(has & HAS_ADDR && within(attr->buf, pd, attr)))
		return fail_null(EINVAL);
	if (has & ~(uint64_t)(HAS_KNOWN & ~HAS_DMAH)) // no DMA handle can be allocated
		return fail_null(EOPNOTSUPP);
	// A region is a dma-buf's, with an offset and an IOVA, or has an address.
	if (is_fd == !!(has & HAS_ADDR) || is_fd != !!(has & HAS_FD_OFFSET) || (is_fd && !(has & HAS_IOVA)))
		return fail_null(EINVAL);
	if (is_fd)
		return ibv_reg_dmabuf_mr(pd, attr->fd_offset, attr->length, attr->iova, attr->fd, attr->access);
	return reg_mr(pd, attr->addr, attr->length, has & HAS_IOVA ? attr->iova : (uintptr_t)attr->addr, attr->access);
}

struct ibv_mr *reg_buf_mr(struct ibv_pd *pd, struct buffer *buf, void *addr, size_t length, int access)
{
	struct mr_init_attr attr = {.length = length, .access = access, .comp_mask = HAS_ADDR | HAS_BUF, .addr = addr, .buf = buf};
	return reg_mr_ex(pd, &attr);
}
