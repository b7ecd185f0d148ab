package hub

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/stack"
)

// leases are the numbers that clients have, and had. They are written to a file before a client hears of them, from which the
// next hub takes them over: what it believes is what a hub has written, and the secret that only the client was given.
type leases struct {
	path string
	all  []*lease
}

type lease struct {
	secret            secret
	qpnSlot, commSlot uint32
	held              bool      // its client is connected
	died              time.Time // when its client went; the zero Time while it is held or may come back
}

func (l *lease) numbers() stack.Numbers { return numbers(l.qpnSlot, l.commSlot) }

// leaseRecord is a lease in the file.
type leaseRecord struct {
	Secret string
	QPNs   uint32
	IDs    uint32
	Died   time.Time // zero: it has not
}

// loadLeases reads the file of an earlier hub, if there is one.
func loadLeases(path string) (*leases, error) {
	t := &leases{path: path}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return nil, err
	}
	var records []leaseRecord
	if err := json.Unmarshal(b, &records); err != nil {
		return nil, fmt.Errorf("%s: %w: remove it if no hub runs", path, err)
	}
	for _, r := range records {
		l := &lease{qpnSlot: r.QPNs, commSlot: r.IDs, died: r.Died}
		n, err := hex.Decode(l.secret[:], []byte(r.Secret[:min(len(r.Secret), 2*len(l.secret))]))
		taken := slices.ContainsFunc(t.all, func(o *lease) bool { return o.qpnSlot == l.qpnSlot || o.commSlot == l.commSlot })
		if err != nil || n != len(l.secret) || taken || l.qpnSlot == 0 || l.qpnSlot >= qpnSlots-1 || l.commSlot == 0 || l.commSlot >= commSlots {
			return nil, fmt.Errorf("%s: no hub has written this: remove it if no hub runs", path)
		}
		t.all = append(t.all, l)
	}
	return t, nil
}

// save writes the file: to another one first, so that a hub that dies meanwhile leaves the old one.
func (t *leases) save() error {
	records := make([]leaseRecord, len(t.all))
	for i, l := range t.all {
		records[i] = leaseRecord{hex.EncodeToString(l.secret[:]), l.qpnSlot, l.commSlot, l.died}
	}
	b, err := json.Marshal(records)
	if err == nil {
		err = os.WriteFile(t.path+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(t.path+".new", t.path)
	}
	return err
}

// take finds the lease that goes with a secret and that nobody holds, and else draws a new one. What it returns is held.
func (t *leases) take(s secret, now time.Time, quarantine time.Duration) (*lease, error) {
	if s != (secret{}) {
		for _, l := range t.all {
			if l.secret == s && !l.held && l.died.IsZero() {
				l.held = true
				return l, nil
			}
		}
	}
	// Numbers that were never used come before those of clients that are dead, and of these the longest dead come first.
	t.all = slices.DeleteFunc(t.all, func(l *lease) bool { return !l.died.IsZero() && now.Sub(l.died) > quarantine })
	for len(t.all) >= qpnSlots-2 {
		oldest := -1
		for i, l := range t.all {
			if !l.died.IsZero() && (oldest < 0 || l.died.Before(t.all[oldest].died)) {
				oldest = i
			}
		}
		if oldest < 0 {
			return nil, fmt.Errorf("all %d ranges of QP numbers are leased to clients that are connected: %w", qpnSlots-2, syscall.EAGAIN)
		}
		t.all = slices.Delete(t.all, oldest, oldest+1)
	}
	l := &lease{held: true}
	_, _ = rand.Read(l.secret[:]) // never fails
	l.qpnSlot = t.draw(qpnSlots-2, func(o *lease) uint32 { return o.qpnSlot })
	l.commSlot = t.draw(commSlots-1, func(o *lease) uint32 { return o.commSlot })
	t.all = append(t.all, l)
	if err := t.save(); err != nil {
		t.all = t.all[:len(t.all)-1]
		return nil, err
	}
	return l, nil
}

// draw draws a slot from 1 to n that no lease has. There is one.
func (t *leases) draw(n int64, of func(*lease) uint32) uint32 {
	var free []uint32
	for slot := uint32(1); slot <= uint32(n); slot++ {
		if !slices.ContainsFunc(t.all, func(l *lease) bool { return of(l) == slot }) {
			free = append(free, slot)
		}
	}
	i, err := rand.Int(rand.Reader, big.NewInt(int64(len(free))))
	if err != nil {
		return free[0] // never: the reader does not fail
	}
	return free[i.Int64()]
}

// end says that a lease's client is gone. The lease is kept, as its numbers are in quarantine.
func (t *leases) end(l *lease, now time.Time) {
	l.held, l.died = false, now
	_ = t.save() // else a successor gives the client up later
}

// missing are the leases of clients of an earlier hub that have not come.
func (t *leases) missing() (gone []*lease) {
	for _, l := range t.all {
		if !l.held && l.died.IsZero() {
			gone = append(gone, l)
		}
	}
	return gone
}
