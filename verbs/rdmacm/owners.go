package rdmacm

import (
	"sync"

	"github.com/softrnic/softrnic/verbs"
)

// owners says which ID moves a QP of the application's: the one that UseQP gave it to last. A connection's end may be reported
// after the application has reset its QP and given it to another ID, whose connection it would end.
var owners = ownerTable{owners: make(map[*verbs.QP]*owner)}

type ownerTable struct {
	mu     sync.Mutex
	owners map[*verbs.QP]*owner
}

// owner is the ID that owns a QP. mu is held while that ID fails the QP, so that no other takes it over meanwhile.
type owner struct {
	mu sync.Mutex
	id *ID // nil if the QP has none any more
}

// take makes id the owner of a QP.
func (t *ownerTable) take(qp *verbs.QP, id *ID) {
	for {
		t.mu.Lock()
		o := t.owners[qp]
		if o == nil {
			o = &owner{id: id}
			t.owners[qp] = o
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
		o.mu.Lock()
		left := o.id == nil // and o is no longer in the table
		if !left {
			o.id = id
		}
		o.mu.Unlock()
		if !left {
			return
		}
	}
}

// leave ends the ownership of id, if it still has it.
func (t *ownerTable) leave(qp *verbs.QP, id *ID) {
	t.whileOwned(qp, id, func(o *owner) {
		o.id = nil
		t.mu.Lock()
		delete(t.owners, qp)
		t.mu.Unlock()
	})
}

// whileOwned calls f if id owns the QP, which it does until f has returned.
func (t *ownerTable) whileOwned(qp *verbs.QP, id *ID, f func(*owner)) {
	t.mu.Lock()
	o := t.owners[qp]
	t.mu.Unlock()
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.id == id {
		f(o)
	}
}
