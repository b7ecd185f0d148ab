package hub

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestLeases checks that clients that request many and few QPs get disjoint numbers, also from a
// successor, until none are left.
func TestLeases(t *testing.T) {
	path, now := filepath.Join(t.TempDir(), "leases"), time.Now()
	table, err := loadLeases(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []*lease
	for i := 0; ; i++ {
		l, err := table.take(secret{}, uint8(i%2)*2, 0, process{}, now, time.Minute)
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := l.numbers().QPNs; n.Mask != 1<<(slotBits+l.bits)-1 || n.Contains(0) || n.Contains(1) || n.Contains(1<<24-1) {
			t.Errorf("invalid lease %+v", n)
		}
		for _, o := range all {
			if a, b := o.numbers(), l.numbers(); a.QPNs.Contains(b.QPNs.Base) || b.QPNs.Contains(a.QPNs.Base) || a.CommIDs == b.CommIDs {
				t.Fatalf("%+v and %+v", a, b)
			}
		}
		all = append(all, l)
	}
	if len(all) < 30 {
		t.Errorf("only %d leases were possible", len(all))
	}
	next, err := loadLeases(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		again, err := next.take(l.secret, 0, 0, process{}, now, time.Minute)
		if err != nil || again.span != l.span {
			t.Fatalf("the successor gives %+v, %v, for %+v", again, err, l.span)
		}
	}
	// Numbers of dead clients are leased again, before the quarantine ends if no others are
	// left.
	big := all[1]
	next.end(next.of(big.numbers().QPNs.Base), now)
	l, err := next.take(secret{}, big.bits, 0, process{}, now, time.Minute)
	if err != nil || l.span.qpnSlot != big.qpnSlot {
		t.Errorf("%+v, %v instead of those of a client that is dead, %+v", l, err, big.span)
	}
}
