package rdmacm_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestDefaultPD: the default PD and its memory regions outlive the connections that use it. The
// next connection has the same PD. Closing the device deallocates it, but fails while the PD has
// regions.
func TestDefaultPD(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pair(t)
		l, err := rdmacm.Listen(a, ":7471", nil)
		must(t, err)
		var mr *verbs.MR
		for range 2 {
			go func() {
				if c, err := l.Accept(t.Context()); err == nil {
					<-c.Done()
					c.Close()
				}
			}()
			c, err := rdmacm.Dial(t.Context(), b, v4A+":7471", nil)
			must(t, err)
			pd := c.PD()
			if mr == nil {
				mr, err = pd.RegMR(make([]byte, 10), 0)
				must(t, err)
			} else if mr.PD() != pd {
				t.Error("the second connection has another default PD")
			}
			must(t, c.Close())
			if err := pd.Close(); !errors.Is(err, verbs.ErrBusy) {
				t.Errorf("Close: %v", err)
			}
			synctest.Wait()
		}
		must(t, l.Close())
		if err := b.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("Close with a region left: %v", err)
		}
		must(t, mr.Close())
		checkEmpty(t, a, b)
		if _, err := b.DefaultPD(); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("DefaultPD of a closed device: %v", err)
		}
	})
}
