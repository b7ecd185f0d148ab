package rdmacm

import (
	"sync"

	"github.com/softrnic/softrnic/verbs"
)

// defaultXRCDs are the XRC domains of what is made without one: one a device, as long as an ID uses it.
var defaultXRCDs = xrcdTable{of: make(map[*verbs.Device]*sharedXRCD)}

type xrcdTable struct {
	mu sync.Mutex // before those of verbs
	of map[*verbs.Device]*sharedXRCD
}

type sharedXRCD struct {
	x     *verbs.XRCD
	users int
}

func (t *xrcdTable) get(d *verbs.Device) (*verbs.XRCD, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.of[d]
	if s == nil {
		x, err := d.OpenXRCD(nil)
		if err != nil {
			return nil, err
		}
		s = &sharedXRCD{x: x}
		t.of[d] = s
	}
	s.users++
	return s.x, nil
}

// put gives a domain back. The last user's fails with ErrBusy if something is left in it; then it stays for the next one.
func (t *xrcdTable) put(d *verbs.Device) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.of[d]
	if s.users--; s.users > 0 {
		return nil
	}
	if err := s.x.Close(); err != nil {
		return err
	}
	delete(t.of, d)
	return nil
}

// useXRCD is the default domain, which the resources give back.
func (r *resources) useXRCD(d *verbs.Device) (*verbs.XRCD, error) {
	x, err := defaultXRCDs.get(d)
	if err == nil {
		r.sharesXRCD = d
	}
	return x, err
}
