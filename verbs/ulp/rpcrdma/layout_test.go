package rpcrdma

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// assemble places the chunks of a Read list, whose bytes are a, b, …, among inline bytes.
func assemble(read []ReadSegment, inline []byte) (string, bool) {
	l, err := newLayout(read, len(inline))
	if err != nil {
		return "", false
	}
	b := bytes.Repeat([]byte{'.'}, l.length)
	for i, s := range read {
		copy(b[l.offsets[i]:], bytes.Repeat([]byte{byte('a' + i)}, int(s.Length)))
	}
	for _, p := range l.inline {
		copy(b[p.to:p.to+p.n], inline[p.from:])
	}
	return string(b), true
}

func TestLayout(t *testing.T) {
	seg := func(position, length uint32) ReadSegment { return ReadSegment{position, Segment{Length: length}} }
	for _, c := range []struct {
		read   []ReadSegment
		inline string
		want   string // "": it is refused
	}{
		{[]ReadSegment{seg(8, 4)}, "01234567", "01234567aaaa"},
		{[]ReadSegment{seg(8, 3)}, "0123456789", "01234567aaa.89"},            // without padding in the chunk
		{[]ReadSegment{seg(8, 3), seg(8, 1)}, "0123456789", "01234567aaab89"}, // with
		{[]ReadSegment{seg(4, 5), seg(16, 2)}, "01234567", "0123aaaaa...4567bb.."},
		{[]ReadSegment{seg(4, 4), seg(8, 4)}, "0123", "0123aaaabbbb"},
		{[]ReadSegment{seg(4, 0), seg(4, 4)}, "01234567", "0123bbbb4567"},
		{[]ReadSegment{seg(12, 4)}, "01234567", ""},           // after the end
		{[]ReadSegment{seg(6, 4)}, "01234567", ""},            // not aligned
		{[]ReadSegment{seg(8, 4), seg(4, 4)}, "01234567", ""}, // not in order
		{[]ReadSegment{seg(4, 8), seg(8, 4)}, "01234567", ""}, // in the first one
	} {
		got, ok := assemble(c.read, []byte(c.inline))
		if ok != (c.want != "") || got != c.want {
			t.Errorf("%+v in %s: %q, %v; want %q", c.read, c.inline, got, ok, c.want)
		}
	}
}

// FuzzLayout: each byte of each chunk and of the inline message has a place of its own. The input
// is the number of inline bytes, and positions and lengths.
func FuzzLayout(f *testing.F) {
	f.Add([]byte{8, 8, 4})
	f.Add([]byte{10, 8, 3, 8, 1})
	f.Add([]byte{8, 4, 5, 16, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > 100 {
			return
		}
		n := int(b[0])
		var read []ReadSegment
		for b = b[1:]; len(b) >= 2; b = b[2:] {
			read = append(read, ReadSegment{uint32(b[0]), Segment{Length: uint32(b[1])}})
		}
		l, err := newLayout(read, n)
		if err != nil {
			return
		}
		used := make([]bool, l.length)
		use := func(at, n int) {
			for i := at; i < at+n; i++ {
				if used[i] {
					t.Fatalf("%+v, %d: byte %d is used twice", read, n, i)
				}
				used[i] = true
			}
		}
		for i, s := range read {
			use(l.offsets[i], int(s.Length))
		}
		sum := 0
		for _, p := range l.inline {
			use(p.to, p.n)
			sum += p.n
		}
		if sum != n {
			t.Errorf("%+v: %d inline bytes of %d", read, sum, n)
		}
	})
}

// call returns a call of NFS.
func nfsMessage(procedure uint32, args ...any) []byte {
	b := []byte{}
	word := func(v uint32) { b = binary.BigEndian.AppendUint32(b, v) }
	for _, v := range []uint32{0x77, 0, 2, nfsProgram, 3, procedure, 1, 8, 1, 2, 0, 0} { // AUTH_SYS of 8 bytes
		word(v)
	}
	return appendArgs(b, args...)
}

func appendArgs(b []byte, args ...any) []byte {
	for _, a := range args {
		switch v := a.(type) {
		case int:
			b = binary.BigEndian.AppendUint32(b, uint32(v))
		case uint64:
			b = binary.BigEndian.AppendUint64(b, v)
		case string:
			b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
			b = append(b, v...)
			b = append(b, make([]byte, pad(len(v)))...)
		}
	}
	return b
}

func nfsReply(args ...any) []byte {
	return appendArgs([]byte{}, append([]any{0x77, 1, 0, 0, "", 0}, args...)...)
}

func TestNFS(t *testing.T) {
	attributes := make([]any, fattr3/4)
	for i := range attributes {
		attributes[i] = 0
	}
	present := append([]any{0, 1}, attributes...)
	read := nfsMessage(procRead, "handle", uint64(9), 70000)
	readlink := nfsMessage(procReadlink, "handle")
	symlink := nfsMessage(procSymlink, "dir", "name", 1, 0o777, 0, 0, 1, uint64(4), 1, 2, uint64(8), "target")
	find := func(items []Item, b []byte) string {
		if len(items) == 0 {
			return "none"
		}
		return string(b[items[0].Offset : items[0].Offset+items[0].Length])
	}
	for name, c := range map[string]struct {
		call, reply     []byte
		inCall, inReply string
	}{
		"WRITE":             {nfsMessage(procWrite, "handle", uint64(5), 3, 2, "abc"), nil, "abc", "none"},
		"SYMLINK":           {symlink, nil, "target", "none"},
		"READ":              {read, nfsReply(append(append([]any{}, present...), 5, 1, "12345")...), "none", "12345"},
		"READ, no attrs":    {read, nfsReply(0, 0, 5, 1, "12345"), "none", "12345"},
		"READ, failed":      {read, nfsReply(5, 0), "none", "none"},
		"READ, denied":      {read, appendArgs(nil, 0x77, 1, 1, 0, 2, 2), "none", "none"},
		"READ, truncated":   {read, nfsReply(0, 0, 5, 1, 5), "none", "none"},
		"READLINK":          {readlink, nfsReply(append(append([]any{}, present...), "path")...), "none", "path"},
		"GETATTR":           {nfsMessage(1, "handle"), nfsReply(0), "none", "none"},
		"too long a handle": {nfsMessage(procWrite, string(make([]byte, 68)), uint64(5), 3, 2, "abc"), nil, "none", "none"},
		"no call":           {nil, nil, "none", "none"},
	} {
		if got := find(NFS.CallItems(c.call), c.call); got != c.inCall {
			t.Errorf("%s: the call's item is %q, not %q", name, got, c.inCall)
		}
		if got := find(NFS.ReplyItems(c.call, c.reply), c.reply); got != c.inReply {
			t.Errorf("%s: the reply's item is %q, not %q", name, got, c.inReply)
		}
	}
	for name, c := range map[string]struct {
		call       []byte
		item, rest int
	}{
		"READ":        {read, 70000, smallRest},
		"READLINK":    {readlink, maxPath, smallRest},
		"READDIR":     {nfsMessage(procReaddir, "d", uint64(0), uint64(0), 8192), 0, 8192 + smallRest},
		"READDIRPLUS": {nfsMessage(procReaddirplus, "d", uint64(0), uint64(0), 4096, 8192), 0, 8192 + smallRest},
		"no call":     {nil, 0, smallRest},
	} {
		if item, rest := NFS.ReplySize(c.call); item != c.item || rest != c.rest {
			t.Errorf("%s: %d and %d bytes, not %d and %d", name, item, rest, c.item, c.rest)
		}
	}
}

// FuzzNFS: items are within the messages.
func FuzzNFS(f *testing.F) {
	f.Add(nfsMessage(procWrite, "handle", uint64(5), 3, 2, "abc"), nfsReply(0))
	f.Add(nfsMessage(procRead, "handle", uint64(9), 70000), nfsReply(0, 0, 5, 1, "12345"))
	f.Add(nfsMessage(procSymlink, "dir", "name", 0, 0, 0, 0, 0, 0, "target"), nfsReply(0))
	compound := appendArgs(nil, 7, 0, 2, nfsProgram, 4, procCompound, 0, 0, 0, 0)
	f.Add(compound, compoundReply(5, slices.Concat(sequence, putfh, readdir, open(0), readAbc)...))
	f.Add(compound, compoundReply(4, slices.Concat(create, setattr, readlink4, []any{25, 5})...))
	f.Fuzz(func(t *testing.T, call, reply []byte) {
		check := func(items []Item, b []byte) {
			at := 0 // the end of the item before
			for _, i := range items {
				if i.Offset < at || i.Length < 0 || i.Offset+i.Length > len(b) || i.end(len(b)) > len(b) {
					t.Errorf("item %+v after %d of %d bytes", i, at, len(b))
				}
				at = i.end(len(b))
			}
		}
		check(NFS.CallItems(call), call)
		check(NFS.ReplyItems(call, reply), reply)
		if item, rest := NFS.ReplySize(call); item < 0 || rest < 0 {
			t.Errorf("%d and %d bytes", item, rest)
		}
		_, _, _, args, ok := Procedure(call)
		if ok && args > len(call) {
			t.Errorf("arguments at %d of %d", args, len(call))
		}
	})
}
