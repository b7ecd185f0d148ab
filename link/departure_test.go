package link_test

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/vlan"
)

// medium is a link to which the test passes frames and departures.
type medium struct {
	recv link.Receiver
	left func(mac [6]byte)
}

func (m *medium) Name() string                           { return "medium" }
func (m *medium) MAC() net.HardwareAddr                  { return net.HardwareAddr{2, 0, 0, 0, 0, 1} }
func (m *medium) MTU() int                               { return 1500 }
func (m *medium) Offloads() link.Offloads                { return link.Offloads{} }
func (m *medium) Attach(recv link.Receiver)              { m.recv = recv }
func (m *medium) Write(frames []link.Frame) (int, error) { return len(frames), nil }
func (m *medium) Close() error                           { return nil }
func (m *medium) WatchDepartures(f func(mac [6]byte))    { m.left = f }

// TestDeparturesOfWrappers: a host that leaves the medium leaves the wrapper's too, after its last
// frame.
func TestDeparturesOfWrappers(t *testing.T) {
	host := [6]byte{2, 0, 0, 0, 0, 2}
	frame := append(append([]byte{2, 0, 0, 0, 0, 1}, host[:]...), 0x81, 0, 0, 5, 0x08, 0)
	frame = append(frame, make([]byte, 60)...)
	for name, wrap := range map[string]func(link.Link) (link.Link, error){
		"capture":      func(l link.Link) (link.Link, error) { return capture.New(l, io.Discard) },
		"vlan":         func(l link.Link) (link.Link, error) { return vlan.New(l, 5) },
		"impair, none": func(l link.Link) (link.Link, error) { return impair.New(l, nil) },
		"impair, delay": func(l link.Link) (link.Link, error) {
			return impair.New(l, &impair.Config{In: impair.Direction{Delay: time.Second}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := new(medium)
				l, err := wrap(m)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				var seen []string
				l.Attach(func([]link.Frame) { seen = append(seen, "frame") })
				link.WatchDepartures(l, func(mac [6]byte) {
					if mac == host {
						seen = append(seen, "left")
					}
				})
				m.recv([]link.Frame{{Data: append([]byte(nil), frame...)}})
				m.left(host)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if len(seen) != 2 || seen[0] != "frame" || seen[1] != "left" {
					t.Errorf("%q, want the frame, then that its host has left", seen)
				}
				link.WatchDepartures(l, nil)
				if m.left != nil {
					m.left(host)
				}
				time.Sleep(2 * time.Second)
				if len(seen) != 2 {
					t.Errorf("%q, after the last watcher has gone", seen)
				}
			})
		})
	}
}
