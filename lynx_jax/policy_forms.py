"""How policies are written as text: what help texts and errors show. Imports nothing."""

POLICY_FORMS = (
    "off, demand, demand:threshold=T[,power=P,row_power=R], lynx, lynx:alpha=A,beta=B[,floor=F], "
    "lynx:preset=authors, oea:k0=K, xshare:budget=M[,k0=K]"
)

DEFAULT_POLICY = "demand"
