//go:build linux

package interop

import (
	"slices"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/pyverbs"
	"github.com/softrnic/softrnic/verbs"
)

// TestIWARPInvalidate: siw has no windows, but uses SoftRNIC's. Each side invalidates with a
// message what the other has opened: siw allows the invalidation of its regions.
func TestIWARPInvalidate(t *testing.T) {
	gate.System(t)
	l := openIWARP(t, capturedIWARP, iwarp.Config{})
	linux := pyverbs.OpenCM(t, l.peer, "siw0")
	p := cmPair{l, softrnicAddr4, l.peer.Addr4()}
	check := func(t *testing.T, w *windowing, want ...string) {
		t.Helper()
		if !slices.Equal(w.log, want) {
			t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(w.log, "\n\t"), strings.Join(want, "\n\t"))
		}
	}
	for _, kind := range []verbs.MWType{window1, window2} {
		t.Run("user/"+kind.String(), func(t *testing.T) {
			here, there := dialSIW(t, p, linux.In(t), depths(4, 4), depths(4, 4)).sides(t)
			w := newWindowing(t, there, here, verbs.AccessLocalWrite|verbs.AccessMWBind)
			w.w = here.pd.allocMW(kind)
			defer w.dealloc()
			w.bind(remote)
			w.use(verbs.RDMARead, 0, 16)
			w.use(verbs.RDMARead, 0, windowLen)
			want := []string{"bind: SUCCESS", "RDMA_READ 0+16: SUCCESS", "RDMA_READ 0+2048: SUCCESS"}
			if kind == window2 {
				w.invalidateThere(w.w.RKey())
				want = append(want, "SEND_WITH_INV: SUCCESS", "RECV: SUCCESS")
			} else {
				w.bindTo(windowOff, 0, 0)
				want = append(want, "bind: SUCCESS")
			}
			w.use(verbs.RDMARead, 0, 16)
			check(t, w, append(want, "RDMA_READ 0+16: WR_FLUSH_ERR")...)
		})
	}
	t.Run("owner", func(t *testing.T) {
		here, there := dialSIW(t, p, linux.In(t), depths(4, 4), depths(4, 4)).sides(t)
		w := newWindowing(t, here, there, allAccess)
		w.siw = true
		rkey := w.region.RKey()
		w.useBy(here, rkey, verbs.RDMARead, 0, 16)
		w.invalidateThere(rkey)
		w.useBy(here, rkey, verbs.RDMARead, 0, 16)
		check(t, w, "RDMA_READ 0+16: SUCCESS", "SEND_WITH_INV: SUCCESS", "RECV: SUCCESS", "RDMA_READ 0+16: REM_ACCESS_ERR")
	})
}
