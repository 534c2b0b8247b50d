"""Folders of MDS that `MDSWriter` of mosaicml-streaming 0.13.0 has written: five samples in two shards."""

from __future__ import annotations

import base64
import json
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np


def _files(packed: str) -> dict[str, bytes]:
    return {name: bytes.fromhex(data) for name, data in json.loads(zlib.decompress(base64.b85decode(packed))).items()}


RAW = _files(
    "c-rk&(XQJd4E>d>K2KF_15WlgNl3I!+MTq%Oq%Y$&p?1cQnk6;-"
    "BYMqH^w&hF&y&y^7YkDzpmeIKVC1NUoJc#GMUx@qftzV)MKLur#EC~GqN_;OnNrjOkSf*C;vFxx(KWo#YSdWA>xRQ_#=0$jCPhml"
    "k7w*u{wziW=!^z=p_%y1i0JRQXkeJAamEkm{IZsu_BTjW%-d(4rPu~U5MAF`JP>s(<bK>wVX+Q#j1$fF8UJ1Nh-"
    "DhlZc*iIdO{PYLV~iS+L4a+~wTDQ-Oss9k;7mb2qZrEGzc83X{Bjx7t;O?Y%n0tK)uMhoGnhfzeqX{V!coUbg-hp7v8kc9t921Co"
    "==F7(jlw)XG{&0=LkC*3@{CzW@pKMn3otg4Ia_&vsc2QOW6^BlV9ymahvjGa#xPSnH?PSu*Lv*P@yl_L0FK0L5xoB9W?a;Y$TQ=0"
    "Q#l6*&h+PYXXbv}z=WyBLp%qZ>vId9z5^+rTP4kuTfTyb*6hj9fw<O&wH(C_97{9jy=aM_K)_VVfFa{JQ%wAaRs>vwx|uPCy%AH&"
    ">$lS*=N(k{~2U~$sWNkb<M?a<I)9Bj6rn{q6tu^AWH1_AYae1!bc^WY;yM_PeIgd8pnRYyKH=4vc_0THc$L&RMRWxAKNykx=w$~r"
    ";a!6EALAP&Io3JKgn0(OvrMGr9<nvcjbeuWI|B7>wy>boV%l<>g{pGW&d9mGdYc!3Z-"
    "fe`K>hKnBShCLxS@hik|7cq}l#7rul%L@<Eg}0<M3}GPyK?87Jbmv8PUUVOP(NQV!5y6{-"
    "1V)a)3JO#2pfK8@G+Oi&RqA=UiC<9~?NS<NQj5eUiOdO0Rblz)GH4HCsREV-"
    "n);uhxkXnkdKFVu&&y5x3SG59*VWUkv0YuZ^X2Uiztrx?"
)
PACKED = _files(
    "c-rk(U5_NU4g4#{J_iR<B1J0yMiM0?0pb9;JOnoU-&5@N&hFS=_znmRKio8Cwp*WMv8vSj<ICT_kNw|I|M>i`?_d7<-"
    "HXjqtTu0KrHR#2>L{c$+goj?Ez=fl>uK8d)grCq&fdo63MN)C20bRFlvN1xi*=KxIr46Kj6*Bd>R6fEdW_#_M;wTRt^amw9rqrUY"
    "x{6SYYTBQM%9WKvHhx#7@lK9cK3Sz=pU9@?q9|HSoOK*G4E;DQZ#;Ue@1a5<G3+-MXzN{_E;x#!S~%WuzGv4{ubN)^n^ug-TYmyZ"
    "`F94b+F@j%c4DIU)Az=8Tv<gU{<&BJ`bR%Kw#zQuf0c=<ofH^FMshod5SKKzyZXR(cLx7*pSD_S~UR|>N}(kM#o*zdmNtRjjfj|Q"
    "XBfr^=wCs4`eRh*~RLgE0<&Ku57NLuT_7<^H5ybm0qv1f3g2N{p7srxa_0Y>?yW;A26}w%b3?{^3pOQ+;>1k_+_9V4dAszr!~zHR"
    "dKKAxyIp{uD_CjSy()H!-"
    "+U*@fKly^j+)#ChJmpf5jLpWv2Hi>}Tb<R`r#6(7Dn75!3z3fe+C|emDQV7~PHw(gZ@@5^KekY6XH9UcDuvUI{VR3;l|I2DXeAMS"
    "PafU-h{nOLT91zxnSs|NZ8_f2jZR@A|Jn@A_2^0Uxbtr0KbIX`ZoDx`Mz998W!c;<|2UE|-"
    "7QtDP^ekepEyFZo^nEq^lq<*)KzzM1#M=mJGx*wase5Jm$l2d;d%E<81Hy&N{tPJHb;(-O}_7$+N0ElF1>fL{Ig!K>fI$KvHL-"
    "@SbP+xT~UqWpaNXMFzj!{`4*zE2mQTF!|^W>i=yh!AuU#!M1hL44LZdQ`oQY2)A{XEv&5L|YV5#YVTep|!P&G@oU{>DJ&e_Uxvkt"
    "=z<RSl8k{UA#_>&{COzB))|xvPva<2*!=sMwel{f^BuHhqlIKAinFgO`|!I#a)M}gU9RvY;Y@Up4Dm9IEBt0?I2V_)Prf0aSvp-"
    "<}A7dYn3(T><hUstW@Wod*~is$EicIAS!i^gTfJLrbv{16s$g*xRPv03}a^*!%KH;XXmh<1LQVHa)QLiLd_Q0sLKbn(Alv{>%0K7"
    "BEHc#OUrd6Tva+(WbUWNI<j{tJFIps)MXSL(das-FWSQbkx^_$m8OF?(ow{X{m$KYaLToHc0Ec1dYuSK4tZ`+3eZ67fu8+{pJkne"
    "x`(K*hCZ1{3%XWeLMdp#5n7Nrc^N&=KVS;t6ds7*1q~=BXx#+S5#AQ2ETAsXvJk2Z*f)4GH?0PW;21pK4=Fgz-"
    "p7_rtYX+;3Ws+cW97N&FyKI?`sAQf>!72kT?B}?2(SYiZ_b5gU0dkbbjRev+ZT@fQ(H)xeS_o!p&e9rL4tA4#0+p2gzO~5Wf<x(%"
    "_o)|-1Z(loNZ6QdRBml)$|qzLuCD=(-"
    "zQ<alFnksXS|rKhPXwqz9rW9FwJ<f(o@PVjnaHqP#vPM^f&zW7H#p;;};~Nndxt`|w()Va*P*L&wK>M#j--WFZ_|)h&ZKRd%Tjsz"
    "Wtlnq^dIVU)2Hx&uIv9#{_ebQ#hOvxLq;0+j~RPSiX`sKOv|xIl)GEcWa`sK6>XX;0;#WCRmw3%fJODO24VXwb&)eV)2<s{r@bUa"
    "{1$Cddoha^xDlSBZQ*T4i@AYev!zaYbj{BBES;bDM|}#{;zB;6HeDU_#pvfk4gzA&gyvTwoUn8))b_1Fw)iyKF=HSgLTII;~)S$B"
    "%-"
    "d$Zbuv*awosT#p5jM{oGg1Zpc#z3v8`Ltn#?>|`X6Bg$f8Xa(Y7QG+!Oc&6_IpbxLKe^LjVX>ILZU`bc(IcYffq$Yu>s0Bk?pgVD"
    "c)}Tdgnp%TVYZrI{PA2S4Q38@FCjshk%7DS(I1U_$OLzL)fwlq_Gl(8$8e?>DgK_pTm83of10<Tw)fvhbCD=eg;=2gmwZJCmS_W{"
    "yJ6FKcDhje@A5o^yfZ(Q1f}_B39CkL(j+k&RFQ7plqlPzPi;g8GIA@$I>vr0$;|+59V%7YY#Cu8eLz)O~&k$>*O8oNE{{V>zYi$"
)


def sample(number: int) -> dict[str, Any]:
    """The sample of a number."""
    return {
        "big": 10**20 + number,
        "data": b"x" * number,
        "dec": Decimal("1.5"),
        "dyn": np.arange(number + 1).reshape(-1, 1),
        "dyn16": np.full(3, number, np.int16),
        "fix": np.full((2, 3), number, np.float32),
        "id": number - 1,
        "n": np.uint8(number),
        "obj": {"a": [number, None]},
        "sf": 0.25 * number,
        "text": "é" * number,
        "x": np.float32(number / 4),
    }


def written(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder
