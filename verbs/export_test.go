package verbs

// Add puts a completion into a CQ, up to where CQ.push is between letting the CQ go and telling those who poll of it.
func (cq *CQ) Add(wc *WC) { cq.add(wc, false) }
