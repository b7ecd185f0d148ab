//go:build unix

package rocetransport_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// TestReadFaults: memory that is missing from some packet on ends the response and the connection
// at that packet.
func TestReadFaults(t *testing.T) {
	const page, pages = 4096, 4
	for _, gone := range []int{0, 1, 3} {
		run(t, fmt.Sprintf("page %d", gone), config{}, func(t *testing.T, r *rig) {
			b, err := unix.Mmap(-1, 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err != nil {
				t.Fatal(err)
			}
			mr, err := r.pd.RegMREx(&verbs.MRInitAttr{Buf: b, Access: verbs.AccessRemoteRead, Mapped: true})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = mr.Close(), unix.Munmap(b) }()
			if err := unix.Mprotect(b[gone*page:], unix.PROT_NONE); err != nil {
				t.Fatal(err)
			}
			r.give(r.req(wire.RCReadRequest, 0, nil, reth(mr.Addr(), mr.RKey(), pages*page), ackReq))
			there := gone * page / r.mtu()
			r.expect(append(r.responses(0, pages*page, 1)[:there], fmt.Sprintf("nak63 %d msn 1", there))...)
			r.state(verbs.StateErr)
		})
	}
}
