package rpcrdma

import (
	"slices"
	"testing"
)

// compoundReply returns a reply to COMPOUND with results, in XDR.
func compoundReply(ops int, results ...any) []byte {
	return nfsReply(append([]any{0, "tag", ops}, results...)...)
}

var (
	sequence  = []any{53, 0, uint64(1), uint64(2), 3, 4, 5, 6, 7}
	putfh     = []any{22, 0}
	getattr   = []any{9, 0, 2, 0x18, 0x30, "attributes"}
	access    = []any{3, 0, 1, 1}
	readAbc   = []any{25, 0, 1, "abc"}
	readdir   = []any{26, 0, uint64(1), 1, uint64(2), "name", 1, 1, "attr", 1, uint64(3), "other", 0, "", 0, 1}
	stateid   = []any{1, 2, 3, 4}
	change    = []any{1, uint64(1), uint64(2)}
	entry     = []any{0, 0, 0, "EVERYONE@"}
	lock      = slices.Concat([]any{12, 0}, stateid)
	create    = slices.Concat([]any{6, 0}, change, []any{1, 7})
	rename    = slices.Concat([]any{29, 0}, change, change)
	setattr   = []any{34, 0, 1, 2}
	write     = []any{38, 0, 5, 2, uint64(9)}
	readlink4 = []any{27, 0, "a/path"}
)

// open returns the result of OPEN with a delegation.
func open(delegation ...any) []any {
	return slices.Concat([]any{18, 0}, stateid, change, []any{0, 1, 5}, delegation)
}

func TestCompound(t *testing.T) {
	call := appendArgs(nil, 7, 0, 2, nfsProgram, 4, procCompound, 0, 0, 0, 0, "tag", 2, 1)
	for name, c := range map[string]struct {
		results [][]any
		want    []string
	}{
		"READ":                   {[][]any{sequence, putfh, readAbc}, []string{"abc"}},
		"after attributes":       {[][]any{sequence, putfh, getattr, access, readAbc, getattr}, []string{"abc"}},
		"several":                {[][]any{readAbc, putfh, readlink4, putfh, {25, 0, 0, ""}, readAbc}, []string{"abc", "a/path", "", "abc"}},
		"the last has failed":    {[][]any{putfh, readAbc, putfh, {25, 13}}, []string{"abc", ""}},
		"another has failed":     {[][]any{putfh, readAbc, {22, 70}}, []string{"abc"}},
		"READDIR":                {[][]any{readdir, readAbc}, []string{"abc"}},
		"no entries":             {[][]any{{26, 0, uint64(1), 0, 1}, readAbc}, []string{"abc"}},
		"changes":                {[][]any{create, rename, setattr, write, lock, readAbc}, []string{"abc"}},
		"OPEN":                   {[][]any{open(0), readAbc}, []string{"abc"}},
		"read delegation":        {[][]any{open(slices.Concat([]any{1}, stateid, []any{0}, entry)...), readAbc}, []string{"abc"}},
		"write delegation":       {[][]any{open(slices.Concat([]any{2}, stateid, []any{0, 1, uint64(9)}, entry)...), readAbc}, []string{"abc"}},
		"delegation with reason": {[][]any{open(3, 1, 1), open(3, 5), readAbc}, []string{"abc"}},
		"unknown delegation":     {[][]any{open(9), readAbc}, nil},
		"unknown operation":      {[][]any{readAbc, {4711, 0}, readAbc}, []string{"abc"}},
		"too long":               {[][]any{readAbc, {25, 0, 1, 4}}, []string{"abc"}},
		"a bitmap that is":       {[][]any{{9, 0, 1 << 30}, readAbc}, nil},
		"none":                   {[][]any{sequence, putfh, getattr}, nil},
	} {
		reply := compoundReply(len(c.results), slices.Concat(c.results...)...)
		var got []string
		for _, i := range NFS.ReplyItems(call, reply) {
			got = append(got, string(reply[i.Offset:i.Offset+i.Length]))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
	if items := NFS.CallItems(call); items != nil {
		t.Errorf("the call has %v", items)
	}
	if items := NFS.ReplyItems(appendArgs(nil, 7, 0, 2, nfsProgram, 4, 0, 0, 0, 0, 0), compoundReply(1, readAbc...)); items != nil {
		t.Errorf("the reply to NULL has %v", items)
	}
}
