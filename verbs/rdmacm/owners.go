package rdmacm

import (
	"sync"

	"github.com/softrnic/softrnic/verbs"
)

// owners has the ID that owns each QP of the application: the one that UseQP assigned it to last.
// The end of a connection may be reported after the application has reset the QP and assigned it to
// another ID. Without owners, this report would end the other ID's connection.
var owners = ownerTable{owners: make(map[*verbs.QP]*owner)}

type ownerTable struct {
	mu     sync.Mutex
	owners map[*verbs.QP]*owner
}

// owner is the ID that owns a QP. mu is held while the ID moves the QP to ERR, so that no other ID
// becomes the owner meanwhile.
type owner struct {
	mu sync.Mutex
	id *ID // nil when the QP no longer has one
}

// acquire makes id the owner of a QP.
func (t *ownerTable) acquire(qp *verbs.QP, id *ID) {
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
		released := o.id == nil // and o is no longer in the table
		if !released {
			o.id = id
		}
		o.mu.Unlock()
		if !released {
			return
		}
	}
}

// release ends the ownership of id, if id still has it.
func (t *ownerTable) release(qp *verbs.QP, id *ID) {
	t.ifOwned(qp, id, func(o *owner) {
		o.id = nil
		t.mu.Lock()
		delete(t.owners, qp)
		t.mu.Unlock()
	})
}

// ifOwned calls f if id owns the QP. The owner does not change before f returns.
func (t *ownerTable) ifOwned(qp *verbs.QP, id *ID, f func(*owner)) {
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
