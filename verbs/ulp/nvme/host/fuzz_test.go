package host_test

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"
)

// FuzzTarget: a target answers the commands of a host, from Connect on, as a script says. Each call
// of the host ends, nothing is left of it, and no memory is written that no command names. The
// first byte chooses discovery. The rest are steps, each for one command of any queue: a byte for
// the kind of answer, one for the length of the data, and the data. After the script the target
// behaves.
func FuzzTarget(f *testing.F) {
	const (
		usual = iota
		data  // and then the usual answer, with a status of the data's first bytes
		capsule
		twice
		close
		elsewhere // data at an address of the script's
		immediate
		kinds
	)
	step := func(kind, repeat byte, b []byte) []byte {
		return bytes.Repeat(append([]byte{kind, byte(len(b))}, b...), int(repeat))
	}
	ones := bytes.Repeat([]byte{0xff}, 255)
	f.Add(step(usual, 9, nil))
	f.Add(append([]byte{1}, step(data, 20, ones)...))
	f.Add(append([]byte{0}, step(data, 20, make([]byte, 64))...))
	f.Add(append(append([]byte{0}, step(usual, 7, nil)...), step(capsule, 2, response(0, nvme.Success, 0))...))
	f.Add(append(append([]byte{0}, step(usual, 12, nil)...), step(twice, 2, nil)...))
	f.Add(append(append([]byte{0}, step(usual, 11, nil)...), step(elsewhere, 9, ones[:40])...))
	f.Add(append(append([]byte{0}, step(usual, 8, nil)...), append(step(immediate, 1, nil), step(close, 1, nil)...)...))
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) == 0 {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			r := newRogue(t, verbs.RoCEv2)
			discovery := script[0]&1 != 0
			var mu sync.Mutex
			rest := script[1:]
			next := func() (kind byte, b []byte) {
				mu.Lock()
				defer mu.Unlock()
				if len(rest) < 2 {
					return usual, nil
				}
				kind, n := rest[0]%kinds, min(int(rest[1]), len(rest)-2)
				b, rest = rest[2:][:n], rest[2+n:]
				return kind, b
			}
			r.handle(func(q *rogueQueue, c *nvme.Command) bool {
				kind, b := next()
				switch kind {
				case usual:
					return false
				case data:
					if c.SGL.Type == nvme.SGLKeyedData && c.SGL.Length > 0 {
						// Repeated, as structures are longer than a step.
						q.write(c.SGL.Addr, c.SGL.Key, bytes.Repeat(append(b, 0), 1+rogueSlot/(len(b)+1))[:min(rogueSlot, int(c.SGL.Length))])
					}
					q.respond(c, nvme.Status(len(b)&1), 1)
				case capsule:
					q.send(b)
				case twice:
					q.respond(c, nvme.Success, 0)
					q.respond(c, nvme.Success, 0)
				case close:
					q.closed = true
				case elsewhere:
					if len(b) > 0 && c.SGL.Type == nvme.SGLKeyedData {
						q.write(c.SGL.Addr+uint64(int8(b[0]))<<8, c.SGL.Key, b)
					}
					q.respond(c, nvme.Success, 0)
				case immediate:
					q.post(&verbs.SendWR{Opcode: verbs.SendWithImm, ImmData: 1, SGList: q.stage(response(c.CID, 0, 0))})
				}
				return true
			})
			ctx := context.Background()
			if discovery {
				_, _ = host.Discover(ctx, r.from, r.addr(), &host.Config{HostNQN: hostNQN, Transport: r.transport})
				return
			}
			c, err := r.dial(ctx, nil)
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = c.Namespaces(ctx)
			_, _ = c.SMART(ctx)
			_, _ = c.ErrorLog(ctx)
			ns, err := c.Namespace(ctx, 1)
			if err != nil {
				return
			}
			_, _ = ns.Descriptors(ctx)
			g, _ := newGuarded(t, c, false)
			defer g.m.Close()
			size := int(min(guardSize, ns.Size())) / ns.BlockSize() * ns.BlockSize()
			_, _ = ns.ReadMemory(ctx, g.m, 0, size, 0)
			_, _ = ns.WriteMemory(ctx, g.m, 0, size, 0)
			_ = ns.Flush(ctx)
			g.intact(t)
		})
	})
}
