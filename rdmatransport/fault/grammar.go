package fault

// Grammar describes rules for the help of a command.
const Grammar = `A rule is WHAT:SELECTORS=EFFECT. The selectors, separated by commas, may be missing.

  reg_mr=ENOMEM                      the first ibv_reg_mr fails; any verb by its name without ibv_
  rdma_connect=ECONNREFUSED          a call of librdmacm, by its whole name
  create_qp=ENOSPC:3                 the third one; 3-5, 3- (all from the third on), * (all)
  post_send:qp=5=ENOMEM:1%           each call for QP 5, with this probability; seed=7 repeats it
  modify_qp:rtr=ETIMEDOUT            of modify_qp, the transition to a state
  wc:opcode=write,nth=100=RETRY_EXC_ERR
                                     a send request fails when it is executed, without being sent,
                                     and its QP goes to error; opcode is send, write, read, atomic
                                     or local. Or a receive request: opcode=recv, with
                                     LOC_PROT_ERR or LOC_LEN_ERR
  wc:qp=5=5ms                        a completion, and those after it in its CQ, come late. With
                                     late=5ms one that also fails, so that an asynchronous event of
                                     its QP comes first
  cq:qp=5=2s                         the QP's CQs get no completions for a time
  event:qp=5=QP_FATAL                an asynchronous event: QP_FATAL, QP_REQ_ERR and QP_ACCESS_ERR
                                     (the QP goes to error), COMM_EST, CQ_ERR and SRQ_LIMIT_REACHED
                                     of the QP's CQ and SRQ, GID_CHANGE, CLIENT_REREGISTER,
                                     DEVICE_FATAL (as device=gone)
  cm:reason=28=REJECTED              the first rdma_connect has this outcome: REJECTED, UNREACHABLE,
                                     CONNECT_ERROR; of rdma_resolve_addr ADDR_ERROR, and of
                                     rdma_resolve_route ROUTE_ERROR
  cm=ADDR_CHANGE                     every ID of the device gets the event
  cm:late=2s=TIMEWAIT_EXIT           this event comes late
  port=down, port=up                 the link's carrier; with for=5s it comes back
  addr=-10.0.0.1, addr=+10.0.0.7/24  an address is removed, or added
  mtu=1500                           the link's MTU changes, in bytes of an IP packet
  device=gone                        as after hot-unplug: DEVICE_FATAL, and every verb gives EIO;
                                     rdma_cm gives DEVICE_REMOVAL
  mr:lkey=0x1234=revoked             a region's keys become invalid; without lkey, those of all regions

post_send counts requests, since a call may fail in the middle of its list. All others count calls;
a C program's list of receive requests is a call for each 16 of them.
Rules of calls, completions and outcomes of rdma_cm hit the first match, unless a number or nth says
which. The others act at once: after=2s lets them wait for a time, and nth=100 for the hundredth send
request that is posted, whose QP they then hit. none ends all rules before it.`
