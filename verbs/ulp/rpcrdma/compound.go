package rpcrdma

// The results of NFS version 4's operations that are OK, up to the data of READ and READLINK (RFC
// 7531, RFC 5662 and RFC 7863, nfs_resop4). The letters are 4, 8 and s for 4, 8 and 16 bytes, c for
// a change_info4, b for a bitmap4, o for an opaque, d for an open_delegation4, r for a dirlist4,
// and i for a data item. Clients send a READ after none of the missing ones: those for sessions,
// layouts and copies.
var operations = map[uint32]string{
	3:  "44",     // ACCESS
	4:  "s",      // CLOSE
	5:  "8",      // COMMIT
	6:  "cb",     // CREATE
	7:  "",       // DELEGPURGE
	8:  "",       // DELEGRETURN
	9:  "bo",     // GETATTR
	10: "o",      // GETFH
	11: "c",      // LINK
	12: "s",      // LOCK
	13: "",       // LOCKT
	14: "s",      // LOCKU
	15: "",       // LOOKUP
	16: "",       // LOOKUPP
	17: "",       // NVERIFY
	18: "sc4bd",  // OPEN
	19: "",       // OPENATTR
	20: "s",      // OPEN_CONFIRM
	21: "s",      // OPEN_DOWNGRADE
	22: "",       // PUTFH
	23: "",       // PUTPUBFH
	24: "",       // PUTROOTFH
	25: "4i",     // READ
	26: "8r",     // READDIR
	27: "i",      // READLINK
	28: "c",      // REMOVE
	29: "cc",     // RENAME
	30: "",       // RENEW
	31: "",       // RESTOREFH
	32: "",       // SAVEFH
	34: "b",      // SETATTR
	37: "",       // VERIFY
	38: "448",    // WRITE
	45: "",       // FREE_STATEID
	53: "s44444", // SEQUENCE
	58: "",       // RECLAIM_COMPLETE
	59: "",       // ALLOCATE
	62: "",       // DEALLOCATE
	69: "48",     // SEEK
	72: "o",      // GETXATTR
	73: "c",      // SETXATTR
	75: "c",      // REMOVEXATTR
}

const opRead, opReadlink = 25, 27

// compound returns the data items of COMPOUND's results. An operation without data, because it has
// failed, has an empty item, so that each has its own Write chunk (RFC 8267 §5.4.2). After an
// operation that the table does not have, or that is damaged, there are no further items.
func (d *decoder) compound() (items []Item) {
	d.skip(4)          // status
	d.opaque(len(d.b)) // tag
	for n := d.uint32(); n > 0; n-- {
		op, status := d.uint32(), d.uint32()
		if d.err != nil {
			return items
		}
		if status != nfsOK { // the last one
			if op == opRead || op == opReadlink {
				items = append(items, Item{Offset: d.off})
			}
			return items
		}
		types, known := operations[op]
		if !known {
			return items
		}
		for _, t := range types {
			if item := d.result(t); t == 'i' && d.err == nil {
				items = append(items, item)
			}
		}
	}
	return items
}

// result skips a part of an operation's result, and returns it if it is an opaque.
func (d *decoder) result(t rune) (item Item) {
	switch t {
	case '4':
		d.skip(4)
	case '8':
		d.skip(8)
	case 's':
		d.skip(16)
	case 'c':
		d.skip(4 + 8 + 8)
	case 'b':
		d.bitmap()
	case 'o', 'i':
		return d.opaque(len(d.b))
	case 'd':
		d.delegation()
	case 'r':
		for d.present() {
			d.skip(8) // cookie
			d.opaque(len(d.b))
			d.bitmap()
			d.opaque(len(d.b))
		}
		d.skip(4) // eof
	}
	return item
}

func (d *decoder) bitmap() {
	n := d.uint32()
	d.skip(int(min(4*uint64(n), uint64(len(d.b))+1))) // int may have 32 bits
}

// delegation skips an open_delegation4 (RFC 8881 §18.16.2, RFC 9754 §3).
func (d *decoder) delegation() {
	const none, read, write, noneExt, readAttributes, writeAttributes = 0, 1, 2, 3, 4, 5
	switch kind := d.uint32(); kind {
	case none:
	case read, write, readAttributes, writeAttributes:
		d.skip(16 + 4) // stateid, recall
		if kind == write || kind == writeAttributes {
			d.skip(4 + 8) // space limit
		}
		d.skip(4 + 4 + 4) // access control entry
		d.opaque(len(d.b))
	case noneExt:
		const contention, resource = 1, 2
		if why := d.uint32(); why == contention || why == resource {
			d.skip(4)
		}
	default:
		d.fail(errShort)
	}
}
