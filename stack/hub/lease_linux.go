package hub

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"os"
	"slices"
	"syscall"
	"time"
)

// leases are the numbers of present and former clients. They are saved to a file before a client
// gets them. The next hub loads the file. It accepts only leases that are in the file, from clients
// that know the secret.
type leases struct {
	path  string
	all   []*lease
	fair  bool        // users have a share each: see fits
	owned func() bool // reports whether the file is this hub's; nil: it is
}

type lease struct {
	span
	secret secret
	holder process   // process of its client
	user   uint32    // its user
	held   bool      // its client is connected
	died   time.Time // when its client died; the zero Time while it is held or may come back
}

// isDead reports whether the client has left for good. Its numbers may still be in quarantine.
func (l *lease) isDead() bool { return !l.died.IsZero() }

// isMissing reports whether the client of an earlier hub has not connected yet.
func (l *lease) isMissing() bool { return !l.held && !l.isDead() }

// isOver reports whether the quarantine of a dead client's numbers is over.
func (l *lease) isOver(now time.Time, quarantine time.Duration) bool {
	return l.isDead() && now.Sub(l.died) > quarantine
}

// leaseRecord is a lease in the file.
type leaseRecord struct {
	Secret string
	QPNs   uint32    // first slot
	Bits   uint8     // number of slots, as a power of two
	IDs    uint32    // slot
	Died   time.Time // zero: alive
	Holder process
	User   uint32
}

// lease decodes a record. It fails if no hub can have written it.
func (r *leaseRecord) lease() (*lease, error) {
	l := &lease{span: span{r.QPNs, r.IDs, r.Bits}, died: r.Died, holder: r.Holder, user: r.User}
	secret, err := hex.DecodeString(r.Secret)
	if err == nil && (len(secret) != len(l.secret) || !l.isValid()) {
		err = errors.New("not written by a hub")
	}
	copy(l.secret[:], secret)
	return l, err
}

// loadLeases loads the file of an earlier hub, if there is one. A file that no hub can have
// written, such as the empty one that a power failure may leave, is renamed. Its clients get other
// numbers.
func loadLeases(path string, log *slog.Logger) (*leases, error) {
	t := &leases{path: path}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return nil, err
	}
	if t.all, err = parseLeases(b); err == nil {
		return t, nil
	}
	log.Warn("the leases of an earlier hub are damaged, and all clients get new ones", "kept as", path+".damaged", "error", err)
	return t, os.Rename(path, path+".damaged")
}

// parseLeases decodes the content of the file.
func parseLeases(b []byte) (all []*lease, err error) {
	var records []leaseRecord
	if err := json.Unmarshal(b, &records); err != nil {
		return nil, err
	}
	for i := range records {
		l, err := records[i].lease()
		if err == nil && slices.ContainsFunc(all, func(o *lease) bool { return o.overlaps(l.span) }) {
			err = errors.New("two leases have the same numbers")
		}
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// save writes a new file and renames it. If the hub dies meanwhile, the old file remains.
func (t *leases) save() error {
	if t.owned != nil && !t.owned() {
		return nil // the file is another hub's
	}
	records := make([]leaseRecord, len(t.all))
	for i, l := range t.all {
		records[i] = leaseRecord{hex.EncodeToString(l.secret[:]), l.qpnSlot, l.bits, l.commSlot, l.died, l.holder, l.user}
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

// take finds a user's lease with this secret, if no client holds it. Otherwise it creates a lease
// with 2^bits QPN slots for a process. The returned lease is held.
func (t *leases) take(s secret, bits uint8, user uint32, holder process, now time.Time, quarantine time.Duration) (*lease, error) {
	if s != (secret{}) {
		for _, l := range t.all {
			if l.secret == s && l.user == user && l.isMissing() {
				l.held = true
				return l, nil
			}
		}
	}
	// Unused numbers are preferred to those of dead clients. Among the latter, the longest dead come
	// first.
	t.all = slices.DeleteFunc(t.all, func(l *lease) bool { return l.isOver(now, quarantine) })
	l := &lease{held: true, holder: holder, user: user}
	_, _ = rand.Read(l.secret[:]) // never fails
	for !t.fits(user, bits) {
		if !t.forgetOldest(user) {
			return nil, fmt.Errorf("user %d has half of the QP numbers that other users leave: %w", user, syscall.EAGAIN)
		}
	}
	for !t.draw(&l.span, bits) {
		if !t.forgetOldest(user) {
			return nil, fmt.Errorf("no %d consecutive QP numbers are left besides those of connected clients: %w",
				1<<(slotBits+bits), syscall.EAGAIN)
		}
	}
	t.all = append(t.all, l)
	if err := t.save(); err != nil {
		t.all = t.all[:len(t.all)-1]
		return nil, err
	}
	return l, nil
}

// fits reports whether a user may have 2^bits more slots of QPNs: with them, it has at most half of
// those that other users leave. Numbers in quarantine count, so that nobody can end the quarantine
// of another user's numbers.
func (t *leases) fits(user uint32, bits uint8) bool {
	own, others := 1<<bits, 0
	for _, l := range t.all {
		if l.user == user {
			own += 1 << l.bits
		} else {
			others += 1 << l.bits
		}
	}
	return !t.fair || own <= (qpnSlots-2-others)/2
}

// forgetOldest ends the quarantine of the longest dead client, if users have a share each, of this
// user. It returns false if no client is dead.
func (t *leases) forgetOldest(user uint32) bool {
	oldest := -1
	for i, l := range t.all {
		if l.isDead() && (!t.fair || l.user == user) && (oldest < 0 || l.died.Before(t.all[oldest].died)) {
			oldest = i
		}
	}
	if oldest < 0 {
		return false
	}
	t.all = slices.Delete(t.all, oldest, oldest+1)
	return true
}

// draw chooses free slots at random, 2^bits of QPNs. It returns false if there are none.
func (t *leases) draw(s *span, bits uint8) bool {
	var ofQPNs, ofIDs []uint32
	for slot := uint32(0); slot < qpnSlots; slot += 1 << bits {
		if t.isFree(span{qpnSlot: slot, bits: bits, commSlot: commSlots}) {
			ofQPNs = append(ofQPNs, slot)
		}
	}
	for slot := uint32(1); slot < commSlots; slot++ {
		if !slices.ContainsFunc(t.all, func(l *lease) bool { return l.commSlot == slot }) {
			ofIDs = append(ofIDs, slot)
		}
	}
	if len(ofQPNs) == 0 || len(ofIDs) == 0 {
		return false
	}
	*s = span{qpnSlot: pick(ofQPNs), commSlot: pick(ofIDs), bits: bits}
	return true
}

// isFree reports whether QPN slots are valid and free.
func (t *leases) isFree(s span) bool {
	return span{s.qpnSlot, 1, s.bits}.isValid() && !slices.ContainsFunc(t.all, func(l *lease) bool { return l.overlaps(s) })
}

// pick chooses one at random.
func pick(of []uint32) uint32 {
	i, err := rand.Int(rand.Reader, big.NewInt(int64(len(of))))
	if err != nil {
		return of[0] // never: the reader does not fail
	}
	return of[i.Int64()]
}

// end records that a lease's client has left. The lease is kept, because its numbers are in
// quarantine.
func (t *leases) end(l *lease, now time.Time) {
	l.held, l.died = false, now
	_ = t.save() // if it is not saved, a successor drops the client later
}

// missing returns the leases of an earlier hub's clients that have not connected yet.
func (t *leases) missing() (gone []*lease) {
	for _, l := range t.all {
		if l.isMissing() {
			gone = append(gone, l)
		}
	}
	return gone
}

// of returns the lease of a living client that has a QPN, or nil.
func (t *leases) of(qpn uint32) *lease {
	for _, l := range t.all {
		if !l.isDead() && l.numbers().QPNs.Contains(qpn) {
			return l
		}
	}
	return nil
}
