package hub

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestLeases checks that clients that request many and few QPs get disjoint numbers, also from a
// successor, until none are left.
func TestLeases(t *testing.T) {
	path, now := filepath.Join(t.TempDir(), "leases"), time.Now()
	table, err := loadLeases(path, slog.New(slog.DiscardHandler))
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
	next, err := loadLeases(path, slog.New(slog.DiscardHandler))
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

// TestDamagedLeases: a hub starts without the leases of a file that no hub has written, and keeps
// the file.
func TestDamagedLeases(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, damaged := range []string{"", "[", `[{"Secret":"00"}]`, "{}"} {
		path := filepath.Join(t.TempDir(), "leases")
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		table, err := loadLeases(path, log)
		if err != nil || len(table.all) != 0 {
			t.Fatalf("%q: %v, %v", damaged, table, err)
		}
		if _, err := table.take(secret{}, 0, 0, process{}, time.Now(), time.Minute); err != nil {
			t.Errorf("after %q: %v", damaged, err)
		}
		if b, err := os.ReadFile(path + ".damaged"); err != nil || string(b) != damaged {
			t.Errorf("%q is kept as %q, %v", damaged, b, err)
		}
		if again, err := loadLeases(path, log); err != nil || len(again.all) != 1 {
			t.Errorf("the successor: %v, %v", again, err)
		}
	}
}

// FuzzLeases checks that leases of any file are valid, and that none have numbers in common.
func FuzzLeases(f *testing.F) {
	f.Add([]byte(`[{"Secret":"000102030405060708090a0b0c0d0e0f","QPNs":4,"Bits":2,"IDs":7},` +
		`{"Secret":"ff0102030405060708090a0b0c0d0e0f","QPNs":8,"IDs":8,"Died":"2026-11-28T00:00:00Z"}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := parseLeases(b)
		if err != nil && len(all) > 0 {
			t.Errorf("%d leases besides %v", len(all), err)
		}
		for i, l := range all {
			if !l.isValid() {
				t.Errorf("%+v", l.span)
			}
			for _, o := range all[:i] {
				if o.overlaps(l.span) {
					t.Errorf("%+v and %+v", o.span, l.span)
				}
			}
		}
	})
}
