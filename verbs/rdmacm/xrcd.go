package rdmacm

import (
	"sync"

	"github.com/softrnic/softrnic/verbs"
)

// defaultXRCDs has the default XRC domain of each device while an ID uses it.
var defaultXRCDs = xrcdTable{of: make(map[*verbs.Device]*sharedXRCD)}

type xrcdTable struct {
	mu sync.Mutex // taken before locks of package verbs
	of map[*verbs.Device]*sharedXRCD
}

type sharedXRCD struct {
	x     *verbs.XRCD
	users int
}

// get returns the default domain of a device. The caller must call put.
func (t *xrcdTable) get(d *verbs.Device) (*verbs.XRCD, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.of[d]
	if s == nil {
		x, err := d.OpenXRCD(nil, 0)
		if err != nil {
			return nil, err
		}
		s = &sharedXRCD{x: x}
		t.of[d] = s
	}
	s.users++
	return s.x, nil
}

// put undoes get. The last put closes the domain. If objects remain in it, put fails with ErrBusy,
// and the domain stays for the next get.
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

// useXRCD returns the default domain. close undoes its use.
func (r *resources) useXRCD(d *verbs.Device) (*verbs.XRCD, error) {
	x, err := defaultXRCDs.get(d)
	if err == nil {
		r.created = append(r.created, xrcdUse{d})
	}
	return x, err
}

// xrcdUse is the use of the default domain of a device.
type xrcdUse struct{ dev *verbs.Device }

// Close implements io.Closer.
func (u xrcdUse) Close() error { return defaultXRCDs.put(u.dev) }
