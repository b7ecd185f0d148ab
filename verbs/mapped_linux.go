package verbs

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// procmapQuery is the argument of PROCMAP_QUERY (struct procmap_query of <linux/fs.h>, Linux 6.11),
// which returns the mapping that contains an address.
type procmapQuery struct {
	size, flags, addr                             uint64
	start, end, vmaFlags, pageSize, offset, inode uint64
	devMajor, devMinor, nameSize, buildIDSize     uint32
	nameAddr, buildIDAddr                         uint64
}

const (
	procmapQueryRequest = 3<<30 | unsafe.Sizeof(procmapQuery{})<<16 | 'f'<<8 | 17 // _IOWR
	// Only readable mappings.
	procmapQueryReadable = 1
	// Only writable mappings.
	procmapQueryWritable = 2
)

// mapped reports whether buf is memory that the process may read, and with write also write. It
// queries mappings, not pages, and touches no page. If a query is not possible, it returns true.
func mapped(buf []byte, write bool) bool {
	if len(buf) == 0 {
		return true
	}
	from := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf))))
	end := from + uint64(len(buf))
	fd, err := unix.Open("/proc/self/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	flags := uint64(procmapQueryReadable)
	if write {
		flags |= procmapQueryWritable
	}
	for from < end {
		q := procmapQuery{size: uint64(unsafe.Sizeof(procmapQuery{})), flags: flags, addr: from}
		switch _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), procmapQueryRequest, uintptr(unsafe.Pointer(&q))); errno {
		case 0:
			from = q.end
		case unix.ENOENT:
			return false
		default: // an older kernel
			return inMaps(bufio.NewScanner(readFD(fd)), from, end, write)
		}
	}
	return true
}

// readFD reads from a file descriptor.
type readFD int

func (fd readFD) Read(b []byte) (int, error) {
	n, err := unix.Read(int(fd), b)
	if n <= 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}

// inMaps looks for [from, end) in the text of /proc/self/maps, whose lines are in the order of
// addresses and start with "start-end rwxp".
func inMaps(lines *bufio.Scanner, from, end uint64, write bool) bool {
	for from < end && lines.Scan() {
		var start, stop uint64
		var rights string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &start, &stop, &rights); err != nil {
			return true
		}
		switch {
		case stop <= from:
			continue
		case start > from, !strings.HasPrefix(rights, "r"), write && !strings.HasPrefix(rights, "rw"):
			return false
		}
		from = stop
	}
	return from >= end || lines.Err() != nil
}
