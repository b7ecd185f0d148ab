package rdmacm_test

import (
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestSRQ: the receive CQ that is created for a QP with an SRQ has room for all requests of the
// SRQ.
func TestSRQ(t *testing.T) {
	const size = 300
	attr := verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: size, MaxSGE: 1}}
	t.Run("CreateQP", func(t *testing.T) {
		bubble(t, func(t *testing.T, a, b *end) {
			id := b.resolve(rdmacm.TCP, v4A+":1")
			must(t, id.CreateSRQ(nil, &attr))
			must(t, id.CreateQP(nil, &verbs.QPInitAttr{}))
			if got := id.QP().RecvCQ().Cap(); got < size {
				t.Errorf("the receive CQ has room for %d, the SRQ for %d", got, size)
			}
			must(t, id.CloseQP())
			must(t, id.CloseSRQ())
			b.close(id)
			a.close()
		})
	})
	t.Run("Config", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, b, _ := pair(t)
			srq := func(dev *verbs.Device) *verbs.SRQ {
				pd, err := dev.DefaultPD()
				must(t, err)
				s, err := pd.CreateSRQ(&attr)
				must(t, err)
				return s
			}
			there, here := srq(a), srq(b)
			l, err := rdmacm.Listen(a, ":7471", &rdmacm.Config{SRQ: there})
			must(t, err)
			go func() {
				if c, err := l.Accept(t.Context()); err == nil {
					if got := c.RecvCQ().Cap(); got < size {
						t.Errorf("the listener's receive CQ has room for %d, the SRQ for %d", got, size)
					}
					<-c.Done()
					must(t, c.Close())
				}
			}()
			c, err := rdmacm.Dial(t.Context(), b, v4A+":7471", &rdmacm.Config{SRQ: here})
			must(t, err)
			if got := c.RecvCQ().Cap(); got < size {
				t.Errorf("Dial's receive CQ has room for %d, the SRQ for %d", got, size)
			}
			must(t, c.Close())
			synctest.Wait()
			must(t, l.Close())
			must(t, there.Close())
			must(t, here.Close())
			checkEmpty(t, a, b)
		})
	})
}

// TestForeignXRCD: an XRC domain of another device is rejected.
func TestForeignXRCD(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		id := b.resolve(rdmacm.IB, v4A+":1")
		x, err := a.dev.OpenXRCD(nil, 0)
		must(t, err)
		wantErr(t, id.CreateXRCQP(x), syscall.EINVAL)
		if id.QP() != nil {
			t.Error("the ID has a QP after CreateXRCQP failed")
		}
		must(t, x.Close())
		b.close(id)
		a.close()
	})
}
