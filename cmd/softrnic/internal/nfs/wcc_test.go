package nfs

import "testing"

// change is a call that changes a file or directory, whose wcc_data is the first one in the
// results.
type change struct {
	procedure uint32
	of        []byte
	args      []any
}

// changesOf returns the calls that change a directory with the files "file" and "old", in an order
// in which all succeed.
func changesOf(root, file []byte) []change {
	return []change{
		{procWrite, file, []any{file, uint64(0), 4, 2, "text"}},
		{procSetattr, file, join([]any{file}, sattrOf(0o640, -1), []any{0})},
		{procSetattr, file, join([]any{file}, sattrOf(0o600, 2), []any{0})},
		{procSetattr, file, join([]any{file}, noAttributes, []any{0})},
		{procCommit, file, []any{file, uint64(0), 0}},
		{procCreate, root, join([]any{root, "new", createGuarded}, noAttributes)},
		{procCreate, root, join([]any{root, "new", 0}, sattrOf(-1, 0))}, // it exists
		{procMkdir, root, join([]any{root, "dir"}, noAttributes)},
		{procSymlink, root, join([]any{root, "link"}, noAttributes, []any{"target"})},
		{procLink, root, []any{file, root, "hard"}},
		{procRename, root, []any{root, "hard", root, "file"}}, // the same file: nothing happens
		{procRename, root, []any{root, "new", root, "old"}},
		{procRemove, root, []any{root, "old"}},
		{procRmdir, root, []any{root, "dir"}},
	}
}

// changed makes a call that changes something, and returns the first wcc_data of the results.
func (c *client) changed(t *testing.T, procedure uint32, args []any) (before *attrs, after attrs) {
	t.Helper()
	x := c.must(t, procedure, args...)
	switch procedure {
	case procCreate, procMkdir, procSymlink:
		x.skip(4)
		x.bytes(handleMax)
		x.postOp()
	case procLink:
		x.postOp()
	}
	before, after = x.wcc()
	if !x.ok {
		t.Fatalf("procedure %d: the results are %x", procedure, x.b)
	}
	return before, after
}

// TestWCC: a change is told with the attributes from before and after it, those from before only if
// the store knows that nobody else has changed the file since.
func TestWCC(t *testing.T) {
	overExports(t, func(t *testing.T, e *export) {
		c := local(e)
		root := c.mount(t, "/")
		file := c.create(t, root, "file")
		c.create(t, root, "old")
		_, counts := e.store.(*memory)
		for i, change := range changesOf(root, file) {
			want := c.getattr(t, change.of)
			before, after := c.changed(t, change.procedure, change.args)
			now := c.getattr(t, change.of)
			now.accessed = after.accessed
			switch {
			case after != now:
				t.Errorf("%d, procedure %d: afterwards %+v, not %+v", i, change.procedure, after, now)
			case before == nil && counts:
				t.Errorf("%d, procedure %d: no attributes from before", i, change.procedure)
			case before != nil && !counts:
				t.Errorf("%d, procedure %d: other programs may have changed it", i, change.procedure)
			case counts && (before.size != want.size || before.mtime != want.mtime || before.changedAt != want.changedAt):
				t.Errorf("%d, procedure %d: before %+v, not %+v", i, change.procedure, before, want)
			}
		}
	})
}

// TestWCCOfTwo: while a call is executed another client changes the file. There are no attributes
// from before, with which the first client would not notice that.
func TestWCCOfTwo(t *testing.T) {
	s := &hookedStore{store: newMemory(1 << 20)}
	e := exported(t, s, false)
	c, other := local(e), local(e)
	root := c.mount(t, "/")
	file := c.create(t, root, "file")
	s.remove = func(string) error {
		other.create(t, root, "of another client")
		return nil
	}
	s.write = func(string, int64) error {
		s.write = nil
		other.write(t, file, 1000, []byte("of another client"), 0)
		return nil
	}
	for procedure, args := range map[uint32][]any{procWrite: {file, uint64(0), 4, 0, "text"}, procRemove: {root, "file"}} {
		if procedure == procRemove {
			c.create(t, root, "removed")
			args[1] = "removed"
		}
		if before, after := c.changed(t, procedure, args); before != nil || after == (attrs{}) {
			t.Errorf("procedure %d: before %+v, after %+v", procedure, before, after)
		}
	}
}

// TestAttributesOfFailures: replies with an error have the attributes of the files that were found:
// a client then need not ask for them.
func TestAttributesOfFailures(t *testing.T) {
	overStores(t, func(t *testing.T, c *client, root []byte) {
		file := c.create(t, root, "file")
		stale := c.create(t, root, "removed")
		c.must(t, procRemove, root, "removed")
		for _, call := range []struct {
			procedure uint32
			args      []any
			want      status
			of        [][]byte
		}{
			{procLookup, []any{root, "absent"}, nfsNoent, [][]byte{root}},
			{procLookup, []any{stale, "absent"}, nfsStale, [][]byte{nil}},
			{procReadlink, []any{file}, nfsInval, [][]byte{file}},
			{procRead, []any{root, uint64(0), 4}, nfsIsdir, [][]byte{root}},
			{procWrite, []any{root, uint64(0), 1, 0, "x"}, nfsIsdir, [][]byte{root}},
			{procReaddir, []any{file, uint64(0), uint64(0), 4096}, nfsNotdir, [][]byte{file}},
			{procCreate, join([]any{root, "file", createGuarded}, noAttributes), nfsExist, [][]byte{root}},
			{procRename, []any{root, "absent", root, "x"}, nfsNoent, [][]byte{root, root}},
			{procRename, []any{root, "file", stale, "x"}, nfsStale, [][]byte{root, nil}},
			{procLink, []any{file, root, "file"}, nfsExist, [][]byte{file, root}},
		} {
			s, x := c.nfs(t, call.procedure, call.args...)
			if s != call.want {
				t.Errorf("procedure %d: status %d, not %d", call.procedure, s, call.want)
				continue
			}
			for i, follow := range nfsProcedures[call.procedure].failure {
				var got, want attrs
				if follow == 'w' {
					_, got = x.wcc()
				} else {
					got = x.postOp()
				}
				if call.of[i] != nil {
					want = c.getattr(t, call.of[i])
				}
				if got.accessed = want.accessed; got != want {
					t.Errorf("procedure %d: %+v, not %+v", call.procedure, got, want)
				}
			}
		}
	})
}
