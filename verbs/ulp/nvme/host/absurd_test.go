package host_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"
)

var le = binary.LittleEndian

// answer makes a handler that answers Admin commands of an opcode with data.
func answer(opcode nvme.Opcode, data func(c *nvme.Command) []byte) func(q *rogueQueue, c *nvme.Command) bool {
	return func(q *rogueQueue, c *nvme.Command) bool {
		if q.id > 0 || c.Opcode != opcode {
			return false
		}
		b := data(c)
		q.write(c.SGL.Addr, c.SGL.Key, b[:min(len(b), int(c.SGL.Length))])
		q.respond(c, nvme.Success, 0)
		return true
	}
}

// answerCNS is answer for an Identify command. Others are answered as usual.
func answerCNS(cns nvme.CNS, data func(c *nvme.Command) []byte) func(q *rogueQueue, c *nvme.Command) bool {
	f := answer(nvme.Identify, data)
	return func(q *rogueQueue, c *nvme.Command) bool {
		return c.Opcode == nvme.Identify && c.CNS() == cns && f(q, c)
	}
}

// TestAbsurdNamespace: a namespace without a usable size is an error, and the controller remains.
func TestAbsurdNamespace(t *testing.T) {
	ones := bytes.Repeat([]byte{0xff}, nvme.IdentifyLen)
	format := func(shift uint8) []byte {
		return (&nvme.IdentifyNamespace{Size: 1, BlockShift: shift}).Append(nil)
	}
	size := func(blocks uint64, shift uint8) []byte {
		return (&nvme.IdentifyNamespace{Size: blocks, BlockShift: shift}).Append(nil)
	}
	other := size(8, 9)
	other[26] = 0x6f // a format that the structure does not have
	bubble(t, func(t *testing.T, r *rogue) {
		c := must(r.dial(t.Context(), nil))(t)
		defer c.Close()
		ns := must(c.Namespace(t.Context(), 1))(t)
		for name, test := range map[string]struct {
			data []byte
			want error
		}{
			"no format": {format(0), syscall.EPROTO}, "blocks of 2 bytes": {format(1), syscall.EPROTO},
			"blocks of 256 bytes": {format(8), syscall.EPROTO}, "blocks of 2^40 bytes": {format(40), syscall.EPROTO},
			"blocks of 2^64 bytes": {format(64), syscall.EPROTO}, "blocks of 2^255 bytes": {format(255), syscall.EPROTO},
			"NSZE 2^64-1": {size(math.MaxUint64, 9), syscall.EPROTO}, "2^63 bytes": {size(1<<54, 9), syscall.EPROTO},
			"other format": {other, syscall.EPROTO}, "ones": {ones, syscall.EPROTO}, "inactive": {make([]byte, nvme.IdentifyLen), verbs.ErrInvalid},
		} {
			r.handle(answerCNS(nvme.CNSNamespace, func(*nvme.Command) []byte { return test.data }))
			if ns, err := c.Namespace(t.Context(), 1); !errors.Is(err, test.want) {
				t.Errorf("%s: %v, %v", name, ns, err)
			}
			before := ns.Size()
			if err := ns.Refresh(t.Context()); !errors.Is(err, test.want) || ns.Size() != before && name != "inactive" {
				t.Errorf("Refresh, %s: %v", name, err)
			}
		}
		if ns.Size() != 0 { // it is inactive now
			t.Error(ns)
		}
		// The largest valid size: ranges at its end do not overflow.
		const most = math.MaxInt64 >> 9
		r.handle(answerCNS(nvme.CNSNamespace, func(*nvme.Command) []byte { return size(most, 9) }))
		ns = must(c.Namespace(t.Context(), 1))(t)
		if ns.Size() != most<<9 {
			t.Error(ns)
		}
		if n, err := ns.ReadAt(make([]byte, 1024), most<<9-1024); n != 1024 || err != nil {
			t.Errorf("the last blocks: %d, %v", n, err)
		}
		if n, err := ns.WriteAt(make([]byte, 1024), most<<9-512); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("beyond the end: %d, %v", n, err)
		}
		ok(t, c.Err())
	})
}

// TestAbsurdData: lists and log pages with absurd values are errors, or what they say. Their memory
// is bounded.
func TestAbsurdData(t *testing.T) {
	ones := bytes.Repeat([]byte{0xff}, 16<<10)
	// list returns a list of 1024 NSIDs after the one that the command has.
	list := func(f func(after, i uint32) uint32) func(*nvme.Command) []byte {
		return func(c *nvme.Command) (b []byte) {
			for i := range uint32(nvme.IdentifyLen / 4) {
				b = le.AppendUint32(b, f(c.NSID, i))
			}
			return b
		}
	}
	bubble(t, func(t *testing.T, r *rogue) {
		c := must(r.dial(t.Context(), nil))(t)
		defer c.Close()
		for name, f := range map[string]func(*nvme.Command) []byte{
			"descending":  list(func(_, i uint32) uint32 { return 2000 - i }),
			"the same":    list(func(after, _ uint32) uint32 { return after + 1 }),
			"of no end":   list(func(after, i uint32) uint32 { return after + 1 + i }),
			"begins anew": list(func(_, i uint32) uint32 { return 1 + i }),
		} {
			commands := 0
			r.handle(answerCNS(nvme.CNSNamespaceList, func(c *nvme.Command) []byte {
				commands++
				return f(c)
			}))
			if list, err := c.Namespaces(t.Context()); !errors.Is(err, syscall.EPROTO) || commands > 65 {
				t.Errorf("a list of NSIDs, %s: %d, %v, %d commands", name, len(list), err, commands)
			}
		}

		for name, b := range map[string][]byte{
			"beyond the end": append(bytes.Repeat([]byte{0, 252, 0, 0}, 1), make([]byte, 252)...), "ones": ones[:nvme.IdentifyLen],
			"the last without room": append(bytes.Repeat(append([]byte{9, 251, 0, 0}, make([]byte, 251)...), 16), 1, 255, 0, 0),
		} {
			b = append(b, ones...)[:nvme.IdentifyLen]
			r.handle(answerCNS(nvme.CNSDescriptors, func(*nvme.Command) []byte { return b }))
			ns := must(c.Namespace(t.Context(), 1))(t)
			if d, err := ns.Descriptors(t.Context()); !errors.Is(err, syscall.EPROTO) {
				t.Errorf("descriptors, %s: %+v, %v", name, d, err)
			}
		}

		r.handle(answer(nvme.GetLogPage, func(*nvme.Command) []byte { return ones }))
		if s, err := c.SMART(t.Context()); err != nil || s.PowerOn < 0 || s.Reads != math.MaxUint64 {
			t.Errorf("SMART: %+v, %v", s, err)
		}
		if log, err := c.ErrorLog(t.Context()); err != nil || len(log) != 1 || log[0].Count != math.MaxUint64 {
			t.Errorf("error log: %+v, %v", log, err)
		}
		if list, err := c.ChangedNamespaces(t.Context()); err != nil || len(list) != nvme.IdentifyLen/4 {
			t.Errorf("changed namespaces: %d, %v", len(list), err)
		}
		ok(t, c.Err())
	})
}

// TestAbsurdDiscovery: the discovery log is bounded, and read again only a few times.
func TestAbsurdDiscovery(t *testing.T) {
	header := func(records, generation uint64, format uint16) []byte {
		return (&nvme.DiscoveryHeader{Generation: generation, Records: records, RecordFormat: format}).Append(nil)
	}
	generation := uint64(0)
	for name, test := range map[string]struct {
		data func() []byte
		want error
	}{
		"2^64-1 entries": {func() []byte { return header(math.MaxUint64, 1, 0) }, syscall.EPROTO},
		"ones":           {func() []byte { return bytes.Repeat([]byte{0xff}, 1024) }, syscall.EPROTO},
		"format":         {func() []byte { return header(1, 1, 1) }, syscall.EPROTO},
		"changes": {func() []byte {
			generation++
			return header(1, generation, 0)
		}, verbs.ErrAgain},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rogue) {
				r.handle(answer(nvme.GetLogPage, func(*nvme.Command) []byte { return test.data() }))
				cfg := &host.Config{HostNQN: hostNQN, Transport: r.transport}
				if list, err := host.Discover(t.Context(), r.from, r.addr(), cfg); !errors.Is(err, test.want) {
					t.Errorf("%d entries, %v", len(list), err)
				}
			})
		})
	}
}

// TestAbsurdController: values of the controller that make it unusable are errors of Dial. Others
// do no harm.
func TestAbsurdController(t *testing.T) {
	ones := bytes.Repeat([]byte{0xff}, nvme.IdentifyLen)
	property := func(p nvme.Property, result uint64) func(*rogue) {
		return func(r *rogue) {
			r.handle(func(q *rogueQueue, c *nvme.Command) bool {
				if c.Opcode != nvme.Fabrics || c.FabricsType() != nvme.PropertyGet || nvme.Property(c.CDW11) != p {
					return false
				}
				q.respond(c, nvme.Success, result)
				return true
			})
		}
	}
	connect := func(status nvme.Status, result uint64) func(*rogue) {
		return func(r *rogue) {
			r.handle(func(q *rogueQueue, c *nvme.Command) bool {
				if q.id == 0 || c.Opcode != nvme.Fabrics || c.FabricsType() != nvme.Connect {
					return false
				}
				q.respond(c, status, result)
				return true
			})
		}
	}
	identify := func(b []byte) func(*rogue) {
		return func(r *rogue) { r.handle(answerCNS(nvme.CNSController, func(*nvme.Command) []byte { return b })) }
	}
	for name, test := range map[string]struct {
		prepare func(r *rogue)
		want    error // nil: it works
	}{
		"reply of another format":   {func(r *rogue) { r.private = []byte{1, 0, 32, 0} }, syscall.EPROTO},
		"CAP 0":                     {property(nvme.PropertyCAP, 0), nil},
		"CAP of ones":               {property(nvme.PropertyCAP, math.MaxUint64), nil},
		"never ready":               {property(nvme.PropertyCSTS, 0), context.DeadlineExceeded},
		"fatal":                     {property(nvme.PropertyCSTS, nvme.CSTSFatal), syscall.EPROTO},
		"no keyed SGLs":             {identify(make([]byte, nvme.IdentifyLen)), syscall.EPROTO},
		"Identify of ones":          {identify(ones), nil},
		"another controller":        {connect(nvme.Success, rogueID+1), syscall.EPROTO},
		"I/O queues of no sequence": {connect(nvme.ConnectInvalid, math.MaxUint64), nvme.ConnectInvalid.Err()},
		"2^16 I/O queues": {func(r *rogue) {
			r.handle(func(q *rogueQueue, c *nvme.Command) bool {
				if q.id > 0 || c.Opcode != nvme.SetFeatures {
					return false
				}
				q.respond(c, nvme.Success, math.MaxUint64)
				return true
			})
		}, nil},
		"one command on the Admin queue": {func(r *rogue) {
			r.accept.CRQSize = 1
			i := controller()
			i.OAES, i.AsyncLimit = nvme.AEAttribute, 255
			identify(i.Append(nil))(r)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rogue) {
				test.prepare(r)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				c, err := r.dial(ctx, nil)
				if test.want != nil {
					if err == nil {
						c.Close()
					}
					var status, want *nvme.StatusError
					if errors.As(test.want, &want) && errors.As(err, &status) && status.Status == want.Status {
						return
					}
					if !errors.Is(err, test.want) {
						t.Errorf("%v, want %v", err, test.want)
					}
					return
				}
				ok(t, err)
				defer c.Close()
				if n := c.MaxTransfer(); n < 4096 || n > 1<<20 {
					t.Errorf("%d bytes in a command", n)
				}
				ns := must(c.Namespace(ctx, 1))(t)
				p := make([]byte, 256<<10)
				if n, err := ns.Read(ctx, p, 0); n != len(p) || err != nil || p[len(p)-1] != roguePattern {
					t.Errorf("%d, %v", n, err)
				}
				n, err := ns.Write(ctx, p, 0)
				if n != len(p) || err != nil {
					t.Errorf("%d, %v", n, err)
				}
			})
		})
	}
}
