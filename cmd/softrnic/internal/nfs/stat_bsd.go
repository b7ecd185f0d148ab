//go:build darwin || freebsd

package nfs

import (
	"io/fs"
	"syscall"
	"time"
)

// setSys sets the attributes that the system has beside those of fs.FileInfo.
func setSys(a *attributes, info fs.FileInfo) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	at := func(t syscall.Timespec) time.Time { return time.Unix(t.Unix()) }
	a.number, a.generation = st.Ino, uint64(at(st.Birthtimespec).UnixNano())
	a.links, a.uid, a.gid = uint32(st.Nlink), st.Uid, st.Gid
	a.used = uint64(st.Blocks) * 512
	a.atime, a.ctime = at(st.Atimespec), at(st.Ctimespec)
}
