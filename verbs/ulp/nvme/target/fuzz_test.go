package target_test

import (
	"bytes"
	"testing"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

// FuzzCapsules: a host sends arbitrary capsules to an Admin queue and an I/O queue, before or after
// Connect. Each queue then still answers, or has ended. No memory outside of what the SGLs describe
// is written, and other hosts are served. The first byte selects the transport and whether the
// queues are connected. The rest are steps: a byte for the queue and the length, then a command.
func FuzzCapsules(f *testing.F) {
	const room, guard = 60 << 10, 4 << 10 // of the memory for data
	step := func(kind byte, c nvme.Command) []byte { return c.Append([]byte{kind}) }
	connect := (&nvme.ConnectCommand{SQSize: testDepth - 1}).Command()
	identify := nvme.Command{Opcode: nvme.Identify, NSID: 1, SGL: nvme.Keyed(0, nvme.IdentifyLen, 0, false)}
	log := (&nvme.LogParams{Page: nvme.LogErrors, Length: 4096}).Command()
	log.SGL = nvme.Keyed(0, 4096, 0, false)
	read, write := rw(nvme.Read, 0, 8), rw(nvme.Write, 0, 8)
	read.SGL, write.SGL = nvme.Keyed(0, 4096, 0, false), nvme.InCapsule(4096)
	discard := nvme.Command{Opcode: nvme.DatasetManagement, NSID: 1, CDW11: nvme.DSMDeallocate, SGL: nvme.Keyed(0, 16, 0, false)}
	for first := range byte(4) {
		f.Add(append([]byte{first}, bytes.Join([][]byte{step(0, connect), step(0, identify), step(0, log), step(1, read), step(9, write),
			step(1, discard), step(0, nvme.Command{Opcode: nvme.AsyncEventRequest}), step(0, nvme.Command{Opcode: nvme.SetFeatures, CDW10: 7}),
			step(0, nvme.PropertySetCommand(nvme.PropertyCC, 0))}, nil)...))
	}
	labs := map[verbs.Transport]*lab{}
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		labs[transport] = newLab(f, transport, &target.Config{Memory: 1 << 20,
			Namespaces: []target.Namespace{{Backend: target.NewMemory(1 << 20)}}})
		labs[transport].dataSize = room + guard
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		l := *labs[verbs.RoCEv2]
		if b[0]&1 != 0 {
			l = *labs[verbs.IWARP]
		}
		l.t = t
		var queues [2]*queue
		if b[0]&2 == 0 {
			a := l.associate(1, 0)
			queues = [2]*queue{a.admin, a.io[0]}
		} else {
			for i := range queues {
				queues[i] = must(l.dial(request(uint16(i), testDepth).Append(nil)))(t)
			}
		}
		var sent [2]int
		for b = b[1:]; len(b) >= 1; {
			n := min(len(b), 1+nvme.CommandLen)
			kind, raw := b[0], make([]byte, nvme.CommandLen)
			copy(raw, b[1:n])
			b = b[n:]
			q := queues[kind&1]
			if sent[kind&1]++; sent[kind&1] > testDepth/2 {
				break
			}
			c := must(nvme.ParseCommand(raw))(t)
			if c.SGL.Type == nvme.SGLKeyedData && kind&4 == 0 { // as a host that is not hostile
				c.SGL.Addr, c.SGL.Key = q.data.Addr(), q.data.RKey()
				c.SGL.Length = min(c.SGL.Length, room)
				c.SGL.Subtype &= 1 // there is no window to invalidate
			}
			c.CID = 0
			capsule := append(c.Append(nil), make([]byte, []int{0, 512, 4096, 8192}[kind>>3&3])...)
			if kind&0x80 != 0 {
				capsule = capsule[:kind&0x3f]
			}
			_ = q.sendRaw(capsule) // the queue may have ended
		}
		for i, q := range queues {
			end := nvme.Command{Opcode: nvme.Flush, NSID: 1, CID: 1}
			if i == 0 {
				end.Opcode = nvme.KeepAlive
			}
			if q.sendRaw(end.Append(nil)) != nil {
				continue
			}
			for {
				done, err := q.response()
				if err != nil && t.Context().Err() == nil && q.conn.QP().State() != verbs.StateErr {
					t.Fatalf("queue %d: %v", i, err)
				}
				if err != nil || done.CID == 1 {
					break
				}
			}
		}
		for _, q := range queues {
			data := q.data.Buf()
			q.close() // nothing is written any more
			if i := bytes.IndexFunc(data[room:], func(r rune) bool { return r != 0 }); i >= 0 {
				t.Errorf("byte %d after the memory of the SGLs is written", i)
			}
		}
	})
}
